// Shared memory: what it is shared by, which containers lend out, and which have more than it is entitled to.

import { bar, empty, h, key, nameOf, pill, visible } from "../dom";
import * as format from "../format";
import { link } from "../route";
import { store } from "../store";
import type { Memory, MemoryStatus, Named, Pool, Verdict } from "../types";
import type { Page } from "./page";
import { alerts, entitled, memoryState, mode, needs } from "./pieces";

type Member = { container: Named; status: MemoryStatus; verdict?: Verdict | null };

/** Members shown of a pool before the rest is only counted. */
const SHOWN = 60;

export function memoryPage(): Page {
  const body = h("div");
  const modeBox = h("span.tags");
  const draw = () => {
    const { memory } = store;
    if (!memory) return body.replaceChildren(empty("Nothing known about memory yet", "The agent has not measured."));
    modeBox.replaceChildren(mode(memory.mode), ...(memory.not_enforced ? [h("span.quiet", {}, visible(memory.not_enforced))] : []));
    const pools = [...memory.pools].sort((a, b) => a.path.localeCompare(b.path));
    const scroll = scrollY;
    body.replaceChildren(
      ...(memory.alerts.length ? [alerts(memory.alerts)] : []),
      ...(pools.length ? pools.map((pool) => poolView(pool, membersOf(pool, pools, memory), memory)) : [empty("No memory is governed", memory.mode === "off" ? "memory.mode is off in the agent's configuration." : "No container has been measured yet.")]),
    );
    scrollTo(0, scroll);
  };
  draw();
  const off = store.on("slow", () => body.contains(document.activeElement) && document.activeElement !== document.body ? undefined : draw());
  return { element: h("div", {}, h("div.tools", {}, h("h1", {}, "Memory"), modeBox), body), title: "Memory", destroy: off };
}

const within = (path: string, of: string) => of === "/" || path === of || path.startsWith(`${of}/`);

/** The innermost pool around a container is where it is shown. */
function membersOf(pool: Pool, pools: Pool[], memory: Memory): Member[] {
  return memory.containers.filter(({ container }) => {
    const around = pools.filter(({ path }) => within(container.path, path)).sort((a, b) => b.path.length - a.path.length);
    return around[0]?.path === pool.path;
  });
}

function poolView(pool: Pool, members: Member[], memory: Memory): HTMLElement {
  const used = Math.max(0, pool.size - pool.free);
  const lent = memory.containers.filter(({ container }) => within(container.path, pool.path)).reduce((total, { status }) => total + status.lent, 0);
  return h(
    "section.pool", { "aria-label": `Shared memory ${pool.path}` },
    h("h2", {}, pool.path === "/" ? "This machine" : h("code", {}, visible(pool.path)), " ", pool.short ? pill("short", memory.mode === "enforce" ? "bad" : "warn", "less is free than memory.short says") : pill("enough", "good")),
    bar(used / pool.size, `${format.bytes(used)} of ${format.bytes(pool.size)} used`, [{ at: pool.reserved / pool.size, title: `reserved ${format.bytes(pool.reserved)}`, kind: "lifeline" }]),
    h(
      "p.quiet", {},
      `${format.bytes(used)} of ${format.bytes(pool.size)} used, ${format.bytes(pool.free)} free, ${format.bytes(pool.reserved)} reserved; ${format.plural(pool.containers, "container")}, ${format.count(pool.needing_more)} of them in need of more; ${format.bytes(lent)} lent out`,
    ),
    ...(members.length > 0 ? table(members, memory.mode === "enforce") : [h("p.quiet", {}, "All of them share a part of it, below.")]),
  );
}

function table(members: Member[], enforced: boolean): Array<HTMLElement | null> {
  const sorted = [...members].sort((a, b) => weight(b.status) - weight(a.status));
  const most = Math.max(1, ...sorted.slice(0, SHOWN).map(({ status }) => Math.max(status.usage, status.entitlement)));
  return [
    key(["own", "uses"], ...(enforced ? ([["borrowed", "more than it is entitled to"], ["lent", "lent out"]] as [string, string][]) : []), ["entitled", "entitled to"]),
    h(
      "div.scroll", { tabindex: 0, role: "region", "aria-label": "Containers that share it" },
      h(
        "table.plain", {},
        h("thead", {}, h("tr", {}, ...([["Container", ""], ["More memory", "whether more would help, by its probe or by how long it waits"], ["Uses, and is entitled to", "bar: what it uses; line: what it would get if it asked"], ["uses", ""], ["entitled to", "entitlement"], ["lent out", "taken from it since it last needed all"], ["reserved", "never taken while it has use for it"], ["State", ""]] as const).map(([text, title], i) => h("th", { scope: "col", title: title || null, ...(i >= 3 && i <= 6 ? { "data-number": true } : {}) }, text)))),
        h(
          "tbody", {},
          ...sorted.slice(0, SHOWN).map(({ container, status, verdict }) =>
            h(
              "tr", {},
              h("th", { scope: "row" }, h("a", { href: link("container", container.id) }, h("bdi", {}, nameOf(container)))),
              h("td", {}, needs(status.colour, verdict?.status)),
              h("td.wide", {}, balance(status, most, enforced)),
              ...[status.usage, status.entitlement, status.lent, status.reservation].map((value, i) => h("td", { "data-number": true, ...(i === 2 && value > 0 ? { "data-strong": true } : {}) }, value === 0 ? h("span.quiet", {}, i === 1 ? entitled(value) : "0") : format.bytes(value))),
              h("td.quiet", {}, memoryState(status, verdict?.status)),
            ),
          ),
        ),
      ),
    ),
    sorted.length > SHOWN ? h("p.quiet", {}, `and ${format.plural(sorted.length - SHOWN, "container")} that ${sorted.length - SHOWN === 1 ? "lends" : "lend"} or ${sorted.length - SHOWN === 1 ? "uses" : "use"} less`) : null,
  ];
}

/** Who matters most for lending comes first. */
function weight(status: MemoryStatus): number {
  return status.lent * 4 + Math.max(0, status.usage - status.entitlement) * 2 + status.usage;
}

/** What it uses, split into what it is entitled to and what is borrowed; what it lends out is hatched behind. Nothing is borrowed where
 *  the governor only observes. */
function balance(status: MemoryStatus, most: number, enforced: boolean): HTMLElement {
  const part = (value: number) => `${Math.min(1, Math.max(0, value / most)) * 100}%`;
  const own = enforced ? Math.min(status.usage, status.entitlement) : status.usage;
  const more = status.usage - own;
  const piece = (kind: string, from: number, size: number) => {
    const element = h("i", { "data-kind": kind });
    element.style.left = part(from);
    element.style.width = part(size);
    return element;
  };
  const words = [`uses ${format.bytes(status.usage)}`, `is entitled to ${entitled(status.entitlement)}`, ...(more > 0 ? [`${format.bytes(more)} of that is borrowed`] : []), ...(status.lent > 0 ? [`has lent out ${format.bytes(status.lent)}`] : [])].join(", ");
  const tick = piece("entitled", status.entitlement, 0);
  tick.style.width = "";
  tick.hidden = status.entitlement === 0;
  return h("span.balance", { role: "img", "aria-label": words, title: words }, piece("own", 0, own), more > 0 ? piece("borrowed", own, more) : null, piece("lent", status.usage, status.lent), tick);
}
