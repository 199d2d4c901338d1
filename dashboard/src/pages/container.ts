// One container: its verdict and findings; what it sees, may have, uses and waits for; why that changed, and where it stands.

import { get, Failed } from "../api";
import { bar, empty, facts, h, moment, nameOf, pill, visible } from "../dom";
import * as format from "../format";
import { kindOf } from "../marks";
import { NetworkTrend } from "../network";
import { link, range } from "../route";
import { attempt, store } from "../store";
import { Trend } from "../trend";
import type { Change, Container, Explanation, Verdict } from "../types";
import { verdictCard } from "../verdict";
import { findingView, type Report } from "./findings";
import type { Page } from "./page";
import { alerts, cpuPlan, diskPlan, entitled, HELD, memoryPlan, memoryState, needs, networkPlan, ranges, refaultPlan, waitingPlan } from "./pieces";

const HEIGHT = 150;
/** Changes listed; the charts mark all. */
const LISTED = 100;

export function containerPage(id: string): Page {
  const title = h("h1", {}, h("bdi", {}, visible(store.rows.get(id)?.live.name ?? id)));
  const tags = h("span.tags");
  const verdict = h("div");
  const rule = h("p.rule", { hidden: true });
  const warnings = h("div");
  const charts = h("div.charts");
  const changes = h("ol.changes", { tabindex: 0, "aria-label": "Changes, newest first" });
  const status = h("div.columns");
  const findings = h("div.findings");
  const gone = h("div", { hidden: true });

  const network = new NetworkTrend(id, range(), networkPlan(HEIGHT));
  let trend: Trend | null = null;
  const follow = () => {
    trend?.destroy();
    const plans = [cpuPlan(HEIGHT, "limit"), memoryPlan(HEIGHT, "limit"), waitingPlan(HEIGHT), refaultPlan(HEIGHT), diskPlan(HEIGHT)];
    trend = new Trend(id, range(), plans, () => latest(id), list);
    network.show(range());
    charts.replaceChildren(...trend.charts.map((chart) => chart.element), ...network.elements);
  };
  const list = (all: Change[]) => {
    const newest = all.slice(-LISTED).reverse();
    changes.replaceChildren(
      ...(newest.length ? newest.map((change) => h("li", { "data-kind": kindOf(change) }, moment(change.at), h("b", {}, visible(change.what)), h("span", {}, visible(change.because)))) : [h("li.quiet", {}, "nothing changed in this time")]),
    );
  };
  follow();

  let told = "";
  const tell = (of: Verdict | null) => {
    const now = JSON.stringify(of);
    if (now === told || verdict.contains(document.activeElement)) return;
    told = now;
    verdict.replaceChildren(verdictCard(of));
  };
  const refresh = async () => {
    if (store.away) return;
    try {
      const { container, explain } = await get<Explanation>(`containers/${encodeURIComponent(id)}/explain`);
      gone.hidden = true;
      title.replaceChildren(h("bdi", {}, nameOf(container)));
      tags.replaceChildren(...describe(container));
      tell(container.verdict ?? null);
      rule.hidden = false;
      rule.textContent = visible(explain.rule);
      status.replaceChildren(...stands(container));
      // What the doctor found is there in full.
      const own = store.alerts.filter((alert) => alert.container?.id === container.id && alert.kind !== "FINDING");
      warnings.replaceChildren(...(own.length ? [alerts(own)] : []));
    } catch (error) {
      if (!(error instanceof Failed) || error.status !== 404) return;
      gone.hidden = false;
      const last = store.ended.find((ended) => ended.id === id);
      if (last) {
        title.replaceChildren(h("bdi", {}, nameOf(last)));
        tell(last.verdict ?? null);
      }
      gone.replaceChildren(empty("This container is gone", ...(last?.ended_unix_ms ? ["It ended at ", moment(last.ended_unix_ms), ". "] : []), "Its past stays on the charts as long as the agent keeps it. ", h("a", { href: link("node") }, "All containers")));
    }
  };
  const look = async () => {
    const name = store.rows.get(id)?.live.name ?? null;
    const found = ((await attempt<Report>("findings"))?.findings ?? []).filter((finding) => finding.container !== null && (finding.container === name || finding.container === id));
    if (!findings.contains(document.activeElement)) findings.replaceChildren(...found.map(findingView));
  };
  void refresh();
  void look();
  const off = [store.on("slow", () => void refresh())];

  return {
    element: h(
      "div", {},
      h("div.tools", {}, h("a.back", { href: link("node"), "aria-label": "Back to all containers", title: "All containers (Esc)" }, "←"), title, tags, ranges(follow)),
      gone, verdict, findings, warnings, rule,
      h("div.beside", {}, charts, h("section.why", { "aria-label": "Changes" }, h("h2", {}, "Changes, and why"), changes)),
      status,
    ),
    title: visible(store.rows.get(id)?.live.name ?? id),
    destroy: () => {
      off.forEach((stop) => stop());
      trend?.destroy();
      network.destroy();
    },
    repaint: () => {
      trend?.repaint();
      network.repaint();
    },
  };
}

function latest(id: string): Record<string, number | null | undefined> | null {
  const live = store.rows.get(id)?.live;
  if (!live) return null;
  const { id: _, name: __, engine: ___, attached: ____, verdict: _____, ...numbers } = live;
  return numbers;
}

function describe(container: Container): HTMLElement[] {
  const { pod } = container;
  return [
    h("span.tag", {}, visible(container.engine)),
    ...(pod ? [h("span.tag", {}, h("bdi", {}, visible([pod.namespace, pod.name ?? pod.uid].filter(Boolean).join("/"))))] : []),
    container.attached ? pill("view attached", "good") : pill("no view", "warn", visible(container.attach_note ?? "")),
    h("code.path", { title: visible(container.id) }, visible(container.path)),
  ];
}

function stands(container: Container): HTMLElement[] {
  const { memory, view } = container;
  const parts = [
    h(
      "section", {}, h("h2", {}, "CPU"),
      facts([
        ["effective", format.cpuWords(view.millicpu / 1000)],
        ["fair share", `${format.cpuWords(view.cpus_lower)} at least`, "what it gets when every container asks"],
        ["limit", `${format.cpuWords(view.cpus_upper)} at most`, "quota and cpuset"],
      ]),
    ),
  ];
  if (memory) {
    parts.push(
      h(
        "section", {}, h("h2", {}, "Memory"),
        facts([
          ["now", [needs(memory.colour, container.verdict?.status), ` ${memoryState(memory, container.verdict?.status)}`], `by its ${memory.source}`],
          ["uses", `${format.bytes(memory.usage)}, ${format.bytes(memory.reclaimable)} of it can be reclaimed`],
          ["entitled to", entitled(memory.entitlement), "what it would get if it asked now"],
          ["reserved", `${format.bytes(memory.reservation)}, minimum ${format.bytes(memory.minimum)}`],
          ["lent out", format.bytes(memory.lent)],
          ["protected", `${format.bytes(memory.protected)}${memory.enforced ? "" : " (not in force)"}`],
          ["waits", memory.stall === null ? "not counted here" : `${format.percent(memory.stall)} of the time`],
          ...(memory.exempt_reason ? [["left alone", visible(memory.exempt_reason)] as [string, string]] : []),
        ]),
      ),
    );
  }
  for (const disk of container.disk) {
    const marks = [
      ...(disk.lifeline === null ? [] : [{ at: disk.lifeline, title: `protected ${format.percent(disk.lifeline)}`, kind: "lifeline" }]),
      ...(disk.cap === null ? [] : [{ at: disk.cap, title: `cap ${format.percent(disk.cap)}`, kind: "cap" }]),
    ];
    parts.push(
      h(
        "section", {}, h("h2", {}, "Disk ", visible(disk.name)),
        bar(disk.used, `uses ${format.percent(disk.used)}`, marks),
        facts([
          ["now", `${format.rate(disk.rbps)} read, ${format.rate(disk.wbps)} written`],
          ["uses", disk.used === null ? "not known yet: the disk has not shown what it can do" : `${format.percent(disk.used)} of the disk`],
          ["protected disk rate", disk.lifeline === null ? "not known yet" : format.percent(disk.lifeline), "its lifeline: the part of the disk it is known to need"],
          ["cap", disk.cap === null ? "none" : `${format.percent(disk.cap)}${disk.enforced ? "" : " (not in force)"}`],
          ["held back by", HELD[disk.held_by] ?? disk.held_by],
        ]),
      ),
    );
  }
  return parts;
}
