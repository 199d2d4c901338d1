// Pieces that more than one page shows.

import { h, moment, nameOf, pill, type Tone, visible } from "../dom";
import type { Plan } from "../chart";
import * as format from "../format";
import { link, range, RANGES, type Range, remember } from "../route";
import type { Alert } from "../types";

/** The buttons that choose how much of the past is shown. */
export function ranges(chosen: (range: Range) => void): HTMLElement {
  const group = h("div.chips", { role: "group", "aria-label": "Time shown" });
  for (const key of Object.keys(RANGES) as Range[]) {
    const button = h("button.chip", { type: "button", "aria-pressed": String(range() === key), "data-range": key }, key.replace("m", " min").replace("h", " h"));
    button.addEventListener("click", () => {
      remember({ range: key === "10m" ? "" : key });
      for (const other of group.children) other.setAttribute("aria-pressed", String(other === button));
      chosen(key);
    });
    group.append(button);
  }
  return group;
}

export function cpuPlan(height: number, limit: string, marks = true): Plan {
  return {
    title: "CPU", kind: "cpu", height, binary: false, floor: 0.1, format: format.cpu, marks,
    lines: [
      { series: "cpu_used", label: "used", role: "used" },
      ...(marks ? [{ series: "cpu_effective", label: "effective", role: "effective" } as const] : []),
      { series: "cpu_upper", label: limit, role: "limit" },
    ],
  };
}

export function memoryPlan(height: number, limit: string, marks = true): Plan {
  return {
    title: "Memory", kind: "memory", height, binary: true, floor: 2 ** 20, format: format.bytes, marks,
    lines: [
      { series: "memory_used", label: "used", role: "used" },
      ...(marks ? [{ series: "memory_effective", label: "effective", role: "effective" } as const] : []),
      { series: "memory_hard", label: limit, role: "limit" },
      ...(marks ? [{ series: "memory_lent", label: "lent", role: "other" } as const] : []),
    ],
  };
}

export function diskPlan(height: number, marks = true): Plan {
  return {
    title: "Disk", kind: "disk", height, binary: true, floor: 2 ** 20, format: format.rate, marks,
    lines: [
      { series: "disk_write", label: "write", role: "used" },
      { series: "disk_read", label: "read", role: "rate" },
    ],
  };
}

/** Alerts that last; a container's own where `of` says whose. */
export function alerts(list: Alert[]): HTMLElement {
  return h(
    "ul.alerts", { "aria-label": "Alerts that last" },
    ...list.map((alert) =>
      h(
        "li", {},
        pill(alert.kind.replaceAll("_", " ").toLowerCase(), alert.severity === "critical" ? "bad" : "warn"),
        h(
          "span", {},
          alert.container ? h("a", { href: link("container", alert.container.id) }, h("bdi", {}, nameOf(alert.container))) : null,
          alert.container && alert.disk_name ? " on " : null,
          alert.disk_name ? h("b", {}, visible(alert.disk_name)) : null,
          alert.container || alert.disk_name ? ": " : null,
          visible(alert.text),
        ),
        alert.since_unix_ms ? h("span.quiet", {}, "since ", moment(alert.since_unix_ms)) : null,
      ),
    ),
  );
}

const MODES: Record<string, [Tone, string]> = {
  enforce: ["good", "decides, and carries it out"],
  observe: ["note", "decides and shows, moves nothing"],
  off: ["plain", "measures nothing"],
};

/** What a governor does with its decisions. */
export function mode(word: string): HTMLElement {
  const [tone, words] = MODES[word] ?? ["plain", ""];
  return pill(word, tone, words);
}

const DISK_STATES: Record<string, [Tone, string]> = {
  free: ["good", "nobody waits for anybody: no caps"],
  guard: ["note", "shared, with room: caps keep everybody out of the others' lifelines"],
  share: ["warn", "full: what there is, is divided"],
  slow: ["bad", "full, and it does less than it could before"],
  inversion: ["bad", "limits slowed everybody down while it was idle: hands off for a while"],
};

export function diskState(word: string): HTMLElement {
  const [tone, words] = DISK_STATES[word] ?? ["plain", ""];
  return pill(word, tone, words);
}

export function diskWords(word: string): string {
  return DISK_STATES[word]?.[1] ?? "";
}

const COLOURS: Record<string, [Tone, string]> = {
  green: ["good", "serves everything that is asked: could lend"],
  yellow: ["mild", "does better than its objective, or hardly waits"],
  red: ["bad", "misses its objective: needs what it is owed"],
};

/** How an application is doing, with a glyph for who cannot tell green from red. */
export function colour(word: string): HTMLElement {
  const [tone, words] = COLOURS[word] ?? ["plain", ""];
  return pill(word, tone, words);
}

export const MEMORY_STATES: Record<string, string> = {
  observe: "watched, nothing is taken yet",
  protected: "has use for what it is owed",
  spare: "could spare some",
  lending: "lends",
  hold: "a loan hurt: nothing is taken for a while",
  dead: "nobody is in it",
};

export const HELD: Record<string, string> = {
  nothing: "nothing",
  cap: "a cap of ours",
  user: "its user's limit",
  contention: "others",
  disk: "a slow disk",
};
