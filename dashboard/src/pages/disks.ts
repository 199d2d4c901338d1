// Every governed disk: what it can do, what is going on, and who is held back by what.

import { bar, empty, h, key, nameOf, visible } from "../dom";
import * as format from "../format";
import { link } from "../route";
import { attempt, store } from "../store";
import type { Container, Disk, DiskStatus, Limit } from "../types";
import type { Page } from "./page";
import { alerts, diskState, diskWords, HELD, mode as modePill } from "./pieces";

const SHOWN = 60;

export function disksPage(): Page {
  const body = h("div");
  const modeBox = h("span.tags");
  let containers: Container[] = [];
  const draw = () => {
    const { disks } = store;
    if (!disks) return body.replaceChildren(empty("Nothing known about disks yet", "The agent has not measured."));
    const policy = typeof disks.policy === "string" ? disks.policy : (disks.policy.policy ?? "");
    modeBox.replaceChildren(modePill(disks.mode), h("span.quiet", {}, visible([policy, disks.not_enforced].filter(Boolean).join("; "))));
    const scroll = scrollY;
    body.replaceChildren(
      ...(disks.alerts.length ? [alerts(disks.alerts)] : []),
      ...(disks.disks.length ? disks.disks.map((disk) => diskView(disk, containers, disks.mode)) : [empty("No disk is governed", disks.mode === "off" ? "disk.mode is off in the agent's configuration." : "A disk appears here when a container uses it.")]),
    );
    scrollTo(0, scroll);
  };
  const refresh = async () => {
    containers = (await attempt<Container[]>("containers")) ?? containers;
    if (!body.contains(document.activeElement)) draw();
  };
  draw();
  void refresh();
  const off = store.on("slow", () => void refresh());
  return { element: h("div", {}, h("div.tools", {}, h("h1", {}, "Disks"), modeBox), body), title: "Disks", destroy: off };
}

const most = (limit: Limit, text: (value: number) => string) => (limit === "max" ? "not known yet" : text(limit));
const iops = (value: number) => `${format.count(value)}/s`;

function diskView(disk: Disk, containers: Container[], mode: string): HTMLElement {
  const users = containers
    .flatMap((container) => container.disk.filter((status) => status.disk === disk.number).map((status) => ({ container, status })))
    .sort((a, b) => weight(b.status) - weight(a.status));
  return h(
    "section.pool", { "aria-label": `Disk ${disk.name}` },
    h("h2", {}, visible(disk.name), " ", diskState(disk.state, mode), " ", h("span.quiet", {}, diskWords(disk.state))),
    disk.exempt_reason ? h("p.rule", {}, visible(disk.exempt_reason)) : null,
    bar(disk.used, disk.used === null ? "capacity not known yet" : `${format.percent(disk.used)} used`, disk.promised > 0 ? [{ at: disk.promised, title: `promised ${format.percent(disk.promised)}`, kind: "lifeline" }] : []),
    h(
      "div.scroll", { tabindex: 0, role: "region", "aria-label": "What the disk does" },
      h(
        "table.plain", {},
        h("thead", {}, h("tr", {}, ...["", "read", "write", "reads", "writes", "requests under way", "a request takes", "when idle", "promised"].map((text, i) => h("th", { scope: "col", ...(i ? { "data-number": true } : {}) }, text)))),
        h(
          "tbody", {},
          cells("now", [format.rate(disk.rbps), format.rate(disk.wbps), iops(disk.riops), iops(disk.wiops), disk.queue.toFixed(1), format.micros(disk.wait), format.micros(disk.base_wait), format.percent(disk.promised)]),
          cells("can\u00a0do", [most(disk.capacity.rbps, format.rate), most(disk.capacity.wbps, format.rate), most(disk.capacity.riops, iops), most(disk.capacity.wiops, iops), "", "", "", ""]),
        ),
      ),
    ),
    users.length ? key(["own", "uses"], ["entitled", "protected disk rate (lifeline)"], ["cap", "cap"]) : null,
    users.length
      ? h(
          "div.scroll", { tabindex: 0, role: "region", "aria-label": "Containers on this disk" },
          h(
            "table.plain", {},
            h("thead", {}, h("tr", {}, ...["Container", "Uses, protected, cap", "uses", "protected", "cap", "read", "write", "Held back by"].map((text, i) => h("th", { scope: "col", ...(i >= 2 && i <= 6 ? { "data-number": true } : {}) }, text)))),
            h("tbody", {}, ...users.slice(0, SHOWN).map(({ container, status }) => userRow(container, status))),
          ),
        )
      : h("p.quiet", {}, "no container uses it now"),
    users.length > SHOWN ? h("p.quiet", {}, `and ${format.plural(users.length - SHOWN, "container")} with less traffic`) : null,
  );
}

function cells(name: string, values: string[]): HTMLElement {
  return h("tr", {}, h("th", { scope: "row" }, name), ...values.map((value) => h("td", { "data-number": true }, value)));
}

function userRow(container: Container, status: DiskStatus): HTMLElement {
  const marks = [
    ...(status.lifeline === null ? [] : [{ at: status.lifeline, title: `protected ${format.percent(status.lifeline)}`, kind: "lifeline" }]),
    ...(status.cap === null ? [] : [{ at: status.cap, title: `cap ${format.percent(status.cap)}`, kind: "cap" }]),
  ];
  const held = status.held_by !== "nothing";
  return h(
    "tr", {},
    h("th", { scope: "row" }, h("a", { href: link("container", container.id) }, h("bdi", {}, nameOf(container)))),
    h("td.wide", {}, bar(status.used, `uses ${format.percent(status.used)}`, marks)),
    ...[format.percent(status.used), format.percent(status.lifeline), status.cap === null ? "none" : `${format.percent(status.cap)}${status.enforced ? "" : " *"}`, format.rate(status.rbps), format.rate(status.wbps)].map((value) =>
      h("td", { "data-number": true, title: value.endsWith("*") ? "decided, not in force" : null }, value),
    ),
    h("td", held ? { "data-strong": true } : { class: "quiet" }, HELD[status.held_by] ?? status.held_by),
  );
}

function weight(status: DiskStatus): number {
  return (status.used ?? 0) * 1e12 + (status.lifeline ?? 0) * 1e11 + status.rbps + status.wbps;
}
