// Pieces that more than one page shows.

import { h, moment, nameOf, pill, type Tone, visible } from "../dom";
import type { Plan } from "../chart";
import * as format from "../format";
import { link, range, RANGES, type Range, remember } from "../route";
import type { Alert, MemoryStatus } from "../types";

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
      ...(marks ? [{ series: "cpu_throttled", label: "throttled", role: "other" } as const] : []),
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
      ...(marks ? [{ series: "memory_lent", label: "lent out", role: "other" } as const] : []),
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

/** Of the container's own network namespace, while the page is open. */
export function networkPlan(height: number): Plan {
  return {
    title: "Network", kind: "network", height, binary: true, floor: 2 ** 10, format: format.rate,
    lines: [
      { series: "network_received", label: "received", role: "used" },
      { series: "network_sent", label: "sent", role: "rate" },
    ],
  };
}

/** How much of the time a task waited, as the kernel counts it. */
export function waitingPlan(height: number): Plan {
  return {
    title: "Waiting (PSI)", kind: "waiting", height, binary: false, floor: 0.1, format: format.percent, optional: true,
    lines: [
      { series: "memory_pressure", label: "for memory", role: "used" },
      { series: "io_pressure", label: "for disks", role: "rate" },
      { series: "cpu_pressure", label: "for a CPU", role: "other" },
    ],
  };
}

/** Memory that was taken and was needed again. */
export function refaultPlan(height: number): Plan {
  return {
    title: "Refaults", kind: "refaults", height, binary: true, floor: 2 ** 20, format: format.rate, optional: true,
    lines: [{ series: "memory_refault", label: "read back after reclaim", role: "used" }],
  };
}

/** What an alert is called: its own word, or the doctor's check. */
function alertWord({ kind, topic }: Alert): string {
  if (kind === "FINDING" && topic) return visible(topic);
  return ALERTS[kind] ?? visible(kind.replaceAll("_", " ").toLowerCase());
}

const ALERTS: Record<string, string> = { INVERSION: "limits backed off", FOREIGN_WRITER: "changed by another program" };

/** Alerts that last; a container's own where `of` says whose. */
export function alerts(list: Alert[]): HTMLElement {
  return h(
    "ul.alerts", { "aria-label": "Alerts that last" },
    ...list.map((alert) =>
      h(
        "li", {},
        pill(alertWord(alert), alert.severity === "critical" ? "bad" : "warn"),
        h("span", {}, ...sentence(alert)),
        alert.since_unix_ms ? h("span.quiet", {}, "since ", moment(alert.since_unix_ms)) : null,
      ),
    ),
  );
}

/** Its text, with what it is about in front, once: many begin with that themselves. */
function sentence({ container, disk_name, text }: Alert): (Node | string)[] {
  const name = container ? nameOf(container) : null;
  const disk = disk_name ? visible(disk_name) : null;
  const words = visible(text);
  const there = container && name ? h("a", { href: link("container", container.id) }, h("bdi", {}, name)) : disk ? h("b", {}, disk) : null;
  if (!there) return [words];
  const about = name ?? disk ?? "";
  if (words.startsWith(`${about} `) || words.startsWith(`${about}:`)) return [there, words.slice(about.length)];
  return [there, ...(name && disk && !words.includes(disk) ? [" on ", h("b", {}, disk)] : []), ": ", words];
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

const DISK_STATES: Record<string, [Tone, string, string]> = {
  free: ["good", "free", "no container waits for another: no caps"],
  guard: ["note", "limiting bursts", "shared, with room: caps keep each container out of the others' protected rates"],
  share: ["warn", "shared out", "full: what there is, is divided"],
  slow: ["bad", "slow", "full, and it does less than it could before"],
  inversion: ["bad", "limits backed off", "limits slowed every container down while the disk was idle: they are off for a while"],
};

/** A disk's state. A governor that only observes limits nothing: nothing is red then. */
export function diskState(word: string, mode: string): HTMLElement {
  const [tone, name, words] = DISK_STATES[word] ?? ["plain", word, ""];
  return pill(name, tone === "bad" && mode !== "enforce" ? "warn" : tone, words);
}

export function diskWords(word: string): string {
  return DISK_STATES[word]?.[2] ?? "";
}

const NEEDS: Record<string, [Tone, string, string]> = {
  green: ["good", "more will not help", "serves everything that is asked"],
  yellow: ["good", "fine", "does better than its objective, or hardly waits"],
  red: ["warn", "needs more", "misses its objective, waits for memory, or hardly fits into its limit"],
};

/** A container whose limit is too small for it needs more, though it waits for nothing. */
function needsMore(colour: string, verdict?: string): boolean {
  return colour === "red" || ["tight", "waiting_memory", "killed"].includes(verdict ?? "");
}

/** Whether more memory would help an application, with a glyph for those who cannot tell colours apart. */
export function needs(colour: string, verdict?: string): HTMLElement {
  const [tone, name, words] = NEEDS[needsMore(colour, verdict) ? "red" : colour] ?? ["plain", colour, ""];
  return pill(name, tone, words);
}

/** An entitlement; 0 is what a container has that nothing is reserved for, and no number to compare with. */
export function entitled(value: number): string {
  return value > 0 ? format.bytes(value) : format.NONE;
}

const MEMORY_STATES: Record<string, string> = {
  observe: "new: nothing is taken yet",
  protected: "in use: what it is entitled to is protected",
  spare: "can lend",
  lending: "lending",
  hold: "paused: a loan hurt, nothing is taken for a while",
  dead: "empty: no process is in it",
};

/** What happens to a container's memory. One that needs more itself lends nothing, and no word says so. */
export function memoryState({ state, colour }: MemoryStatus, verdict?: string): string {
  return state === "spare" && needsMore(colour, verdict) ? "" : (MEMORY_STATES[state] ?? state);
}

export const HELD: Record<string, string> = {
  nothing: "nothing",
  cap: "a cap of the agent",
  user: "its user's limit",
  others: "other containers",
  disk: "a slow disk",
};
