// The table of containers. Rows exist only where they are looked at, so five hundred cost what thirty do.

import { Bullet, h, mark, nameOf, say } from "./dom";
import * as format from "./format";
import { link, remember, route } from "./route";
import { draw, forgetSizes } from "./spark";
import { io, type Row, store } from "./store";
import type { Live } from "./types";
import { badness, verdictPill } from "./verdict";

interface Column {
  key: string;
  title: string;
  words: string;
  /** What is sorted by, largest first; text is sorted from A. */
  value: (live: Live) => number | string | null;
}

const ratio = (part: number | null, whole: number | null) => (part == null || !whole ? null : part / whole);

const COLUMNS: Column[] = [
  { key: "name", title: "Container", words: "by name", value: (live) => nameOf(live).toLowerCase() },
  { key: "state", title: "State", words: "worst first", value: (live) => badness(live.verdict) },
  { key: "cpu", title: "CPU used", words: "by CPU used", value: (live) => live.cpu_used },
  { key: "cpu_effective", title: "of effective", words: "by effective CPU", value: (live) => live.cpu_effective },
  { key: "memory", title: "Memory used", words: "by memory used", value: (live) => live.memory_used },
  { key: "memory_effective", title: "of effective", words: "by effective memory", value: (live) => live.memory_effective },
  { key: "disk", title: "Disk read, written", words: "by disk traffic", value: io },
];

const FILTERS: { key: string; title: string; words: string; fits: (live: Live) => boolean }[] = [
  { key: "", title: "All", words: "every container", fits: () => true },
  { key: "sick", title: "Sick", words: "needs attention, or an alert is about it", fits: (live) => badness(live.verdict) > 0 || store.alerted.has(live.id) },
  { key: "busy", title: "Busy", words: "uses 95 % of its effective CPU or more", fits: (live) => (ratio(live.cpu_used, live.cpu_effective) ?? 0) >= 0.95 },
  { key: "pressed", title: "Pressed", words: "uses 90 % of its effective memory or more", fits: (live) => (ratio(live.memory_used, live.memory_effective) ?? 0) >= 0.9 },
  { key: "less", title: "Below its limit", words: "sees less than its limits would allow", fits: (live) => (ratio(live.cpu_effective, live.cpu_upper) ?? 1) < 1 || (ratio(live.memory_effective, live.memory_hard) ?? 1) < 1 },
];

/** Worst first, unless the user chose otherwise. */
const SORT = "state";

/** Rows kept above and below what is visible. */
const SPARE = 4;

export class Grid {
  readonly element: HTMLElement;
  private readonly filter: HTMLInputElement;
  private readonly chips: HTMLButtonElement[];
  private readonly counter = h("span.quiet", { role: "status" });
  private readonly body = h("div.grid-body", { role: "rowgroup" });
  private readonly head: HTMLElement;
  private readonly nothing = h("div.empty", { hidden: true });
  private readonly table: HTMLElement;
  private readonly pool: Line[] = [];
  private order: Row[] = [];
  private rowHeight = 40;
  /** Whose row has the focus, or would. */
  private current = "";
  private frame = 0;
  /** Grows with everything that changes what rows look like: between two of them, scrolling only moves rows. */
  private look = 0;
  private readonly off: (() => void)[];

  constructor() {
    const { query } = route();
    this.filter = h("input.filter", { type: "search", placeholder: "Filter by name, id, engine  ( / )", "aria-label": "Filter containers", spellcheck: "false", autocomplete: "off", value: query.get("q") ?? "" });
    this.filter.addEventListener("input", () => this.choose({ q: this.filter.value.trim() }));
    this.filter.addEventListener("keydown", (event) => {
      if (event.key === "ArrowDown" || event.key === "Enter") {
        event.preventDefault();
        this.focusRow(0);
      }
    });
    this.chips = FILTERS.map(({ key, title, words }) => h("button.chip", { type: "button", title: words, "data-key": key, onclick: () => this.choose({ show: key }) }, title));
    this.head = h(
      "div.grid-head", { role: "row" },
      ...COLUMNS.map(({ key, title, words }) => h("span", { role: "columnheader", "data-column": key }, h("button.sort", { type: "button", title: `Sort ${words}`, onclick: () => this.sortBy(key) }, title, h("i", { "aria-hidden": "true" })))),
    );
    this.table = h("div.grid", { role: "grid", "aria-label": "Containers", "aria-colcount": COLUMNS.length }, h("div.grid-top", { role: "rowgroup" }, this.head), this.body);
    this.body.addEventListener("keydown", (event) => this.walk(event));
    this.body.addEventListener("focusin", (event) => {
      const row = (event.target as HTMLElement).closest<HTMLElement>(".row");
      if (row?.dataset.id) this.current = row.dataset.id;
    });
    this.element = h(
      "section.containers", { "aria-label": "Containers" },
      h("div.tools", {}, h("h2", {}, "Containers"), this.counter, h("div.chips", { role: "group", "aria-label": "Show" }, ...this.chips), this.filter),
      this.table, this.nothing,
    );
    const scrolled = () => this.soon();
    const resized = () => {
      forgetSizes();
      this.changed();
    };
    addEventListener("scroll", scrolled, { passive: true });
    addEventListener("resize", resized);
    this.off = [
      () => removeEventListener("scroll", scrolled),
      () => removeEventListener("resize", resized),
      store.on("tick", () => this.refresh()),
      store.on("slow", () => this.refresh()),
    ];
    this.refresh();
  }

  destroy(): void {
    cancelAnimationFrame(this.frame);
    forgetSizes();
    for (const off of this.off) off();
  }

  focusFilter(): void {
    this.filter.focus();
    this.filter.select();
  }

  repaint(): void {
    this.look += 1;
    this.layout();
  }

  private choose(changes: Record<string, string>): void {
    remember(changes);
    this.refresh();
  }

  private sortBy(key: string): void {
    const { query } = route();
    const same = (query.get("sort") ?? SORT) === key;
    this.choose({ sort: key === SORT ? "" : key, reverse: same && !query.has("reverse") ? "1" : "" });
  }

  /** Chooses and sorts, then draws what is visible. */
  private refresh(): void {
    const { query } = route();
    const words = (query.get("q") ?? "").toLowerCase().split(/\s+/).filter(Boolean);
    const show = FILTERS.find(({ key }) => key === (query.get("show") ?? "")) ?? (FILTERS[0] as (typeof FILTERS)[number]);
    const column = COLUMNS.find(({ key }) => key === (query.get("sort") ?? SORT)) ?? (COLUMNS[0] as Column);
    const turn = query.has("reverse") ? -1 : 1;
    const fits = ({ live }: Row) => {
      if (!show.fits(live)) return false;
      if (words.length === 0) return true;
      const text = `${nameOf(live)} ${live.id} ${live.engine ?? ""}`.toLowerCase();
      return words.every((word) => text.includes(word));
    };
    this.order = [...store.rows.values()].filter(fits);
    const values = new Map(this.order.map((row) => [row, column.value(row.live)]));
    const names = new Map(this.order.map((row) => [row, nameOf(row.live).toLowerCase()]));
    this.order.sort((a, b) => turn * compare(values.get(a) ?? null, values.get(b) ?? null) || compare(names.get(a) ?? "", names.get(b) ?? "") || (a.live.id < b.live.id ? -1 : 1));

    for (const header of this.head.children) {
      const sorted = header.getAttribute("data-column") === column.key;
      const text = column.key === "name";
      mark(header, "aria-sort", sorted ? (text === (turn === 1) ? "ascending" : "descending") : null);
    }
    for (const chip of this.chips) mark(chip, "aria-pressed", String(chip.dataset.key === show.key));
    const all = store.rows.size;
    say(this.counter, this.order.length === all ? format.count(all) : `${format.count(this.order.length)} of ${format.count(all)}`);
    mark(this.table, "aria-rowcount", String(this.order.length + 1));
    this.table.hidden = this.order.length === 0;
    this.nothing.hidden = this.order.length > 0 || store.at === 0;
    if (!this.nothing.hidden) {
      const none = all === 0;
      this.nothing.replaceChildren(
        h("p.empty-title", {}, none ? "No containers on this machine" : "No container fits"),
        none ? h("p", {}, "Start one with any engine, or with ", h("code", {}, "elbowroom run -- COMMAND"), ": it appears here within a second.") : h("p", {}, h("button.plain", { type: "button", onclick: () => this.clear() }, "Show all again")),
      );
    }
    this.look += 1;
    this.layout();
  }

  private clear(): void {
    this.filter.value = "";
    this.choose({ q: "", show: "" });
  }

  private changed(): void {
    this.look += 1;
    this.soon();
  }

  private soon(): void {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.layout());
  }

  private layout(): void {
    if (!this.element.isConnected) return this.soon();
    this.rowHeight = parseFloat(getComputedStyle(this.body).getPropertyValue("--row")) || 40;
    this.body.style.height = `${this.order.length * this.rowHeight}px`;
    const above = -this.body.getBoundingClientRect().top;
    const first = Math.max(0, Math.floor(above / this.rowHeight) - SPARE);
    const last = Math.min(this.order.length, Math.ceil((above + innerHeight) / this.rowHeight) + SPARE);
    const reachable = this.order.slice(first, last).some((row) => row.live.id === this.current);
    // A row keeps its elements while it is visible: focus and hover stay where they are.
    const free = new Map(this.pool.map((line) => [line.id, line]));
    const wanted = this.order.slice(first, last);
    const taken = new Set(wanted.map((row) => row.live.id));
    const spare = this.pool.filter((line) => !taken.has(line.id));
    wanted.forEach((row, i) => {
      let line = free.get(row.live.id) ?? spare.pop();
      if (!line) {
        line = new Line();
        this.pool.push(line);
        this.body.append(line.element);
      }
      const index = first + i;
      line.place(index, this.rowHeight, reachable ? row.live.id === this.current : index === first);
      line.show(row, this.look);
      if (!row.seeded && store.at > 0 && !store.away) store.seed(row, () => this.changed());
    });
    for (const line of spare) line.hide();
  }

  private walk(event: KeyboardEvent): void {
    const now = this.order.findIndex((row) => row.live.id === this.current);
    const page = Math.max(1, Math.floor(innerHeight / this.rowHeight) - 4);
    const next = { ArrowDown: now + 1, ArrowUp: now - 1, PageDown: now + page, PageUp: now - page, Home: 0, End: this.order.length - 1 }[event.key];
    if (next === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    if (next < 0 && event.key === "ArrowUp") this.filter.focus();
    else this.focusRow(next);
  }

  private focusRow(index: number): void {
    const at = Math.max(0, Math.min(index, this.order.length - 1));
    const row = this.order[at];
    if (!row) return;
    this.current = row.live.id;
    const top = this.body.getBoundingClientRect().top + at * this.rowHeight;
    const margin = 120;
    if (top < margin) scrollBy(0, top - margin);
    else if (top + this.rowHeight > innerHeight - 16) scrollBy(0, top + this.rowHeight - innerHeight + 16);
    this.layout();
    this.pool.find((line) => line.id === this.current)?.element.focus({ preventScroll: true });
  }
}

/** One collator for all: to make one takes longer than to compare a thousand names. */
const NAMES = new Intl.Collator(undefined, { numeric: true });

function compare(a: number | string | null, b: number | string | null): number {
  if (a === null || b === null) return Number(a === null) - Number(b === null);
  return typeof a === "string" ? NAMES.compare(a, b as string) : (b as number) - a;
}

/** One visible row. */
class Line {
  readonly element: HTMLAnchorElement;
  id = "";
  private look = -1;
  private top = -1;
  private readonly name = h("bdi.row-name");
  private readonly tag = h("span.row-tag");
  private readonly flag = h("span.row-flag", { hidden: true, title: "an alert is about it" }, "▲");
  private readonly state = h("span.cell", { role: "gridcell", "data-cell": "state" });
  private verdict = "";
  private readonly cpu = new Meter("cpu");
  private readonly memory = new Meter("memory");
  private readonly read = h("span.number");
  private readonly write = h("span.number");
  private readonly disk = h("canvas.spark", { "aria-hidden": "true", "data-column": "disk" });

  constructor() {
    const cell = (kind: string, ...children: HTMLElement[]) => h("span.cell", { role: "gridcell", "data-cell": kind }, ...children);
    this.element = h(
      "a.row", { role: "row" },
      cell("name", this.flag, this.name, this.tag),
      this.state,
      cell("cpu", this.cpu.used, this.cpu.bullet.element, this.cpu.spark),
      cell("cpu_effective", this.cpu.room),
      cell("memory", this.memory.used, this.memory.bullet.element, this.memory.spark),
      cell("memory_effective", this.memory.room),
      cell("disk", h("span.io", {}, h("span.quiet", { title: "read" }, "R"), this.read, h("span.quiet", { title: "written" }, "W"), this.write), this.disk),
    );
  }

  /** Where it is, and whether Tab leads to it. */
  place(index: number, height: number, reachable: boolean): void {
    const { element } = this;
    element.tabIndex = reachable ? 0 : -1;
    if (this.top === index * height) return;
    this.top = index * height;
    element.style.transform = `translateY(${this.top}px)`;
    mark(element, "aria-rowindex", String(index + 2));
    mark(element, "data-even", index % 2 ? null : "");
  }

  /** What it says; drawn only once for each `look`. */
  show(row: Row, look: number): void {
    const { live } = row;
    const { element } = this;
    if (this.id === live.id && this.look === look) return;
    this.look = look;
    if (this.id !== live.id) {
      this.id = live.id;
      element.dataset.id = live.id;
      element.href = link("container", live.id);
    }
    element.hidden = false;
    say(this.name, nameOf(live));
    mark(this.name, "title", `${nameOf(live)} (${live.id})`);
    say(this.tag, live.attached === false ? "no view" : (live.engine ?? ""));
    this.flag.hidden = badness(live.verdict) > 0 || !store.alerted.has(live.id);
    const verdict = live.verdict ? `${live.verdict.status} ${live.verdict.reason}` : "ok";
    if (this.verdict !== verdict) {
      this.verdict = verdict;
      this.state.replaceChildren(verdictPill(live.verdict));
    }
    this.cpu.show(live.cpu_used, live.cpu_effective, live.cpu_upper, format.cpu);
    this.memory.show(live.memory_used, live.memory_effective, live.memory_hard, format.bytes);
    mark(this.cpu.used, "title", format.cpuWords(live.cpu_used));
    draw(this.cpu.spark, row.cpu, store.second, live.cpu_effective);
    draw(this.memory.spark, row.memory, store.second, live.memory_effective);
    draw(this.disk, row.disk, store.second, 1 << 20);
    for (const [element, value] of [[this.read, live.disk_read], [this.write, live.disk_write]] as const) {
      say(element, value === 0 ? "0" : format.rate(value));
      mark(element, "data-zero", value ? null : "");
    }
  }

  hide(): void {
    if (this.id === "") return;
    this.id = "";
    this.element.hidden = true;
    delete this.element.dataset.id;
  }
}

/** Used, of what is effective, of what would be allowed. */
class Meter {
  readonly bullet = new Bullet();
  readonly used = h("span.number");
  readonly room = h("span.room");
  readonly spark: HTMLCanvasElement;
  private readonly effective = h("b");
  private readonly limit = h("span.quiet");

  constructor(column: string) {
    this.spark = h("canvas.spark", { "aria-hidden": "true", "data-column": column });
    this.room.append(this.effective, this.limit);
  }

  show(used: number | null, effective: number | null, limit: number | null, text: (value: number | null) => string): void {
    this.bullet.set(used, effective, limit);
    say(this.used, text(used));
    say(this.effective, text(effective));
    say(this.limit, limit === effective ? "" : ` of ${text(limit)}`);
  }
}
