// Who lends memory to whom: pools, and in each who gives and who holds more than its entitlement.

import { bar, empty, h, key, nameOf, pill, visible } from "../dom";
import * as format from "../format";
import { link } from "../route";
import { store } from "../store";
import type { Memory, MemoryStatus, Named, Pool } from "../types";
import type { Page } from "./page";
import { alerts, colour, MEMORY_STATES, mode } from "./pieces";

type Member = { container: Named; status: MemoryStatus };

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
  const used = Math.max(0, pool.size - pool.room);
  const lent = memory.containers.filter(({ container }) => within(container.path, pool.path)).reduce((total, { status }) => total + status.lent, 0);
  return h(
    "section.pool", { "aria-label": `Pool ${pool.path}` },
    h("h2", {}, pool.path === "/" ? "This machine" : h("code", {}, visible(pool.path)), " ", pool.short ? pill("short", "bad", "less is free than memory.short says") : pill("enough", "good")),
    bar(used / pool.size, `${format.bytes(used)} of ${format.bytes(pool.size)} used`, [{ at: pool.reserved / pool.size, title: `reserved ${format.bytes(pool.reserved)}`, kind: "lifeline" }]),
    h(
      "p.quiet", {},
      `${format.bytes(used)} of ${format.bytes(pool.size)} used, ${format.bytes(pool.room)} free, ${format.bytes(pool.reserved)} reserved; ${format.plural(pool.containers, "container")}, ${format.count(pool.needers)} need more than they have; ${format.bytes(lent)} lent`,
    ),
    ...(members.length > 0 ? table(members) : [h("p.quiet", {}, "All of them are in pools inside of it, below.")]),
  );
}

function table(members: Member[]): Array<HTMLElement | null> {
  const sorted = [...members].sort((a, b) => weight(b.status) - weight(a.status));
  const most = Math.max(1, ...sorted.slice(0, SHOWN).map(({ status }) => Math.max(status.usage, status.entitlement)));
  return [
    key(["own", "uses"], ["borrowed", "more than its entitlement"], ["lent", "lends"], ["owed", "entitlement, or reserved in the pool"]),
    h(
      "div.scroll", { tabindex: 0, role: "region", "aria-label": "Containers of this pool" },
      h(
        "table.plain", {},
        h("thead", {}, h("tr", {}, ...([["Container", ""], ["Doing", "how the application is doing, by its probe or by how long it waits"], ["Uses, and is entitled to", "bar: what it uses; line: what it would get if it asked"], ["uses", ""], ["entitled to", "entitlement"], ["lends", "taken from it since it last needed all"], ["reserved", "never taken while it has use for it"], ["State", ""]] as const).map(([text, title], i) => h("th", { scope: "col", title: title || null, ...(i >= 3 && i <= 6 ? { "data-number": true } : {}) }, text)))),
        h(
          "tbody", {},
          ...sorted.slice(0, SHOWN).map(({ container, status }) =>
            h(
              "tr", {},
              h("th", { scope: "row" }, h("a", { href: link("container", container.id) }, h("bdi", {}, nameOf(container)))),
              h("td", {}, colour(status.colour)),
              h("td.wide", {}, balance(status, most)),
              ...[status.usage, status.entitlement, status.lent, status.reserve].map((value, i) => h("td", { "data-number": true, ...(i === 2 && value > 0 ? { "data-strong": true } : {}) }, value === 0 ? h("span.quiet", {}, "0") : format.bytes(value))),
              h("td.quiet", {}, MEMORY_STATES[status.state] ?? status.state),
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

/** What it uses, split into what is owed to it and what is borrowed; what it lends is hatched behind. */
function balance(status: MemoryStatus, most: number): HTMLElement {
  const part = (value: number) => `${Math.min(1, Math.max(0, value / most)) * 100}%`;
  const own = Math.min(status.usage, status.entitlement);
  const more = Math.max(0, status.usage - status.entitlement);
  const piece = (kind: string, from: number, size: number) => {
    const element = h("i", { "data-kind": kind });
    element.style.left = part(from);
    element.style.width = part(size);
    return element;
  };
  const words = [`uses ${format.bytes(status.usage)}`, `is entitled to ${format.bytes(status.entitlement)}`, ...(more > 0 ? [`${format.bytes(more)} of that is borrowed`] : []), ...(status.lent > 0 ? [`lends ${format.bytes(status.lent)}`] : [])].join(", ");
  const tick = piece("owed", status.entitlement, 0);
  tick.style.width = "";
  return h("span.balance", { role: "img", "aria-label": words, title: words }, piece("own", 0, own), piece("borrowed", own, more), piece("lent", status.usage, status.lent), tick);
}
