// One container: what it sees against what it may have and what it uses, why that changed, and where it stands.

import { get, Failed } from "../api";
import { bar, empty, facts, h, moment, nameOf, pill, visible } from "../dom";
import * as format from "../format";
import { kindOf } from "../marks";
import { link, range } from "../route";
import { attempt, store } from "../store";
import { Trend } from "../trend";
import type { Change, Container, Explanation } from "../types";
import { findingView, type Report } from "./findings";
import type { Page } from "./page";
import { alerts, colour, cpuPlan, diskPlan, HELD, memoryPlan, MEMORY_STATES, ranges } from "./pieces";

const HEIGHT = 168;
/** Changes listed; the charts mark all. */
const LISTED = 100;

export function containerPage(id: string): Page {
  const title = h("h1", {}, h("bdi", {}, visible(store.rows.get(id)?.live.name ?? id)));
  const tags = h("span.tags");
  const rule = h("p.rule", { hidden: true });
  const warnings = h("div");
  const charts = h("div.charts");
  const changes = h("ol.changes", { tabindex: 0, "aria-label": "Changes, newest first" });
  const status = h("div.columns");
  const findings = h("div");
  const gone = h("div", { hidden: true });

  let trend: Trend | null = null;
  const follow = () => {
    trend?.destroy();
    const plans = [cpuPlan(HEIGHT, "limit"), memoryPlan(HEIGHT, "limit"), diskPlan(HEIGHT)];
    trend = new Trend(id, range(), plans, () => latest(id), list);
    charts.replaceChildren(...trend.charts.map((chart) => chart.element));
  };
  const list = (all: Change[]) => {
    const newest = all.slice(-LISTED).reverse();
    changes.replaceChildren(
      ...(newest.length ? newest.map((change) => h("li", { "data-kind": kindOf(change) }, moment(change.at), h("b", {}, visible(change.what)), h("span", {}, visible(change.because)))) : [h("li.quiet", {}, "nothing changed in this time")]),
    );
  };
  follow();

  const refresh = async () => {
    if (store.away) return;
    try {
      const { container, explain } = await get<Explanation>(`containers/${encodeURIComponent(id)}/explain`);
      gone.hidden = true;
      title.replaceChildren(h("bdi", {}, nameOf(container)));
      tags.replaceChildren(...describe(container));
      rule.hidden = false;
      rule.textContent = visible(explain.rule);
      status.replaceChildren(...stands(container));
      const own = store.alerts.filter((alert) => alert.container?.id === container.id);
      warnings.replaceChildren(...(own.length ? [alerts(own)] : []));
    } catch (error) {
      if (!(error instanceof Failed) || error.status !== 404) return;
      gone.hidden = false;
      gone.replaceChildren(empty("This container is gone", "Its past stays on the charts as long as the agent keeps it. ", h("a", { href: link("node") }, "All containers")));
    }
  };
  const look = async () => {
    const name = store.rows.get(id)?.live.name ?? null;
    const found = ((await attempt<Report>("findings"))?.findings ?? []).filter((finding) => finding.container !== null && (finding.container === name || finding.container === id));
    findings.replaceChildren(...(found.length ? [h("h2", {}, "Findings"), ...found.map(findingView)] : []));
  };
  void refresh();
  void look();
  const off = [store.on("slow", () => void refresh())];

  return {
    element: h(
      "div", {},
      h("div.tools", {}, h("a.back", { href: link("node"), "aria-label": "Back to all containers", title: "All containers (Esc)" }, "←"), title, tags, ranges(follow)),
      gone, warnings, rule,
      h("div.beside", {}, charts, h("section.why", { "aria-label": "Changes" }, h("h2", {}, "Changes, and why"), changes)),
      status, findings,
    ),
    title: visible(store.rows.get(id)?.live.name ?? id),
    destroy: () => {
      off.forEach((stop) => stop());
      trend?.destroy();
    },
    repaint: () => trend?.repaint(),
  };
}

function latest(id: string): Record<string, number | null | undefined> | null {
  const live = store.rows.get(id)?.live;
  if (!live) return null;
  const { id: _, name: __, engine: ___, attached: ____, ...numbers } = live;
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
        ["fair share", `${view.cpus_lower} at least`, "LOWER of the algorithm: what it gets when everybody asks"],
        ["limit", `${view.cpus_upper} at most`, "UPPER: quota and cpuset"],
      ]),
    ),
  ];
  if (memory) {
    parts.push(
      h(
        "section", {}, h("h2", {}, "Memory"),
        facts([
          ["now", [colour(memory.colour), ` ${MEMORY_STATES[memory.state] ?? memory.state}`], `says ${memory.source}`],
          ["uses", `${format.bytes(memory.usage)}, ${format.bytes(memory.reclaimable)} of it can be taken`],
          ["is entitled to", format.bytes(memory.entitlement), "entitlement: what it would get if it asked now"],
          ["reserved", `${format.bytes(memory.reserve)}, floor ${format.bytes(memory.floor)}`],
          ["lends", format.bytes(memory.lent)],
          ["kept for it", `${format.bytes(memory.protected)}${memory.enforced ? "" : " (not in force)"}`],
          ["waits", memory.stall === null ? "not counted here" : `${format.percent(memory.stall)} of the time`],
          ...(memory.exempt_reason ? [["left alone", visible(memory.exempt_reason)] as [string, string]] : []),
        ]),
      ),
    );
  }
  for (const disk of container.disk) {
    const marks = [
      ...(disk.lifeline === null ? [] : [{ at: disk.lifeline, title: `lifeline ${format.percent(disk.lifeline)}`, kind: "lifeline" }]),
      ...(disk.cap === null ? [] : [{ at: disk.cap, title: `cap ${format.percent(disk.cap)}`, kind: "cap" }]),
    ];
    parts.push(
      h(
        "section", {}, h("h2", {}, "Disk ", visible(disk.name)),
        bar(disk.used, `uses ${format.percent(disk.used)}`, marks),
        facts([
          ["now", `${format.rate(disk.rbps)} read, ${format.rate(disk.wbps)} written`],
          ["uses", disk.used === null ? "not known yet: the disk has not shown what it can do" : `${format.percent(disk.used)} of the disk`],
          ["lifeline", disk.lifeline === null ? "not known yet" : format.percent(disk.lifeline), "the part of the disk it is known to need"],
          ["cap", disk.cap === null ? "none" : `${format.percent(disk.cap)}${disk.enforced ? "" : " (not in force)"}`],
          ["held back by", HELD[disk.held_by] ?? disk.held_by],
        ]),
      ),
    );
  }
  return parts;
}
