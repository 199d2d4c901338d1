// The first page: the machine at a glance, what is wrong, and every container.

import { bar, facts, h, pill, say, visible } from "../dom";
import * as format from "../format";
import { Grid } from "../grid";
import { range } from "../route";
import { io, store } from "../store";
import { Trend } from "../trend";
import { endedList, Sick } from "../verdict";
import type { Page } from "./page";
import { alerts, cpuPlan, diskPlan, diskState, memoryPlan, mode, ranges } from "./pieces";

const HEIGHT = 104;

export function nodePage(): Page {
  const cpu = tile("CPU");
  const memory = tile("Memory");
  const disks = tile("Disks");
  const agent = tile("Agent");
  const warnings = h("section", { "aria-label": "Alerts", hidden: true });
  const sick = new Sick();
  const grid = new Grid();
  const endedTitle = h("summary");
  const ended = h("details.ended", { hidden: true }, endedTitle);
  let endedShown = "";

  const plans = [cpuPlan(HEIGHT, "machine", false), memoryPlan(HEIGHT, "machine", false), diskPlan(HEIGHT, false)];
  const boxes = [cpu, memory, disks];
  let trend: Trend | null = null;
  const follow = () => {
    trend?.destroy();
    trend = new Trend(null, range(), plans, latest);
    trend.charts.forEach((chart, i) => boxes[i]?.chart.replaceChildren(chart.element));
  };
  follow();

  const element = h(
    "div", {},
    h("div.tools", {}, h("h1", {}, "Node"), ranges(follow)),
    sick.element,
    h("section.tiles", { "aria-label": "Machine" }, cpu.element, memory.element, disks.element, agent.element),
    warnings,
    grid.element,
    ended,
  );

  const tick = () => {
    const { node } = store;
    sick.show([...[...store.rows.values()].map(({ live }) => live), ...store.ended]);
    const now = JSON.stringify(store.ended);
    if (now !== endedShown) {
      endedShown = now;
      ended.hidden = store.ended.length === 0;
      say(endedTitle, `${format.plural(store.ended.length, "container")} ended within the last hour`);
      ended.replaceChildren(endedTitle, endedList(store.ended));
    }
    cpu.big(format.cpu(node.cpu_used), `of ${format.count(node.cpus)} CPUs used`, node.cpu_used, node.cpus);
    const effective = sum((live) => live.cpu_effective);
    const asked = sum((live) => live.cpu_used);
    cpu.small(store.rows.size ? `containers use ${format.cpu(asked)}; what each could use now adds up to ${format.cpu(effective)}` : "no containers");
    memory.big(format.bytes(node.memory_used), `of ${format.bytes(node.memory_total)} used`, node.memory_used, node.memory_total);
    const traffic = io(node);
    disks.big(format.rate(traffic), "read and written", null, null);
  };
  const slow = () => {
    const { memory: report, disks: governed, status } = store;
    const pool = report?.pools.find(({ path }) => path === "/");
    const lent = report?.containers.reduce((total, { status }) => total + status.lent, 0);
    memory.small(pool ? `${format.bytes(pool.free)} free for containers, ${format.bytes(pool.reserved)} reserved, ${format.bytes(lent)} lent out${pool.short ? "; memory is short" : ""}` : "");
    disks.list.replaceChildren(
      ...(governed?.disks ?? []).map((disk) =>
        h("div.line", {}, h("b", {}, visible(disk.name)), diskState(disk.state, governed?.mode ?? ""), bar(disk.used, disk.used == null ? "capacity not known yet" : `${format.percent(disk.used)} of its capacity used`), h("span.number", {}, disk.used == null ? "–" : format.percent(disk.used))),
      ),
    );
    disks.small(governed?.disks.length === 0 ? "no disk is used by containers yet" : "");
    const lasting = store.alerts;
    warnings.hidden = lasting.length === 0;
    if (lasting.length > 0) warnings.replaceChildren(h("h2", {}, format.plural(lasting.length, "alert")), alerts(lasting));
    if (!status) return;
    const failing = status.receivers.filter((receiver) => receiver.failed + receiver.dropped > 0);
    const late = status.ticks_missed / Math.max(1, status.ticks + status.ticks_missed);
    agent.list.replaceChildren(
      facts([
        ["views attached", [pill(`${format.count(status.attached)} of ${format.count(status.containers)}`, status.attached < status.containers ? "warn" : "good")]],
        ["disk governor", governed ? [mode(governed.mode), governed.not_enforced ? ` ${visible(governed.not_enforced)}` : ""] : "–"],
        ["memory governor", report ? [mode(report.mode), report.not_enforced ? ` ${visible(report.not_enforced)}` : ""] : "–"],
        ["updates", [pill(late < 0.01 ? "on time" : `${format.percent(late)} late`, late < 0.01 ? "good" : "warn", `${format.count(status.ticks)} taken, ${format.count(status.ticks_missed)} came too late since the agent began`)]],
        ["receivers", failing.length > 0 ? [pill(`${failing.length} of ${status.receivers.length} failing`, "warn", failing.map(({ receiver }) => visible(receiver)).join(", "))] : status.receivers.length ? "delivering" : "none"],
        ["version", `${visible(status.version)}, senses by ${visible(status.source)}`],
      ]),
    );
  };
  const off = [store.on("tick", tick), store.on("slow", slow)];
  if (store.at) tick();
  if (store.status) slow();

  return {
    element,
    title: "Node",
    destroy: () => {
      off.forEach((stop) => stop());
      trend?.destroy();
      grid.destroy();
    },
    repaint: () => {
      trend?.repaint();
      grid.repaint();
    },
    focusFilter: () => grid.focusFilter(),
  };
}

function latest(): Record<string, number | null | undefined> {
  const { node } = store;
  return { cpu_used: node.cpu_used, cpu_upper: node.cpus, memory_used: node.memory_used, memory_hard: node.memory_total, disk_read: node.disk_read, disk_write: node.disk_write };
}

function sum(of: (live: { cpu_effective: number | null; cpu_used: number | null }) => number | null): number {
  let total = 0;
  for (const { live } of store.rows.values()) total += of(live) ?? 0;
  return total;
}

function tile(title: string) {
  const value = h("b.big-value", {}, "–");
  const words = h("span.quiet");
  const meter = h("span.meter", { hidden: true });
  const under = h("p.quiet");
  const list = h("div.lines");
  const chart = h("div");
  const element = h("section.tile", { "aria-label": title }, h("h2", {}, title), h("p.big", {}, value, " ", words), meter, under, list, chart);
  (value.parentElement as HTMLElement).hidden = true;
  return {
    element, list, chart,
    big(text: string, rest: string, part: number | null | undefined, whole: number | null | undefined) {
      (value.parentElement as HTMLElement).hidden = false;
      say(value, text);
      say(words, rest);
      meter.hidden = part == null || !whole;
      if (part != null && whole) meter.replaceChildren(bar(part / whole, `${title}: ${format.percent(part / whole)} used`));
    },
    small(text: string) {
      say(under, text);
    },
  };
}
