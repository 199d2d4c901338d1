// Charts that follow the agent: history for a range, then what the stream adds, second by second or by asking again.

import { attempt, historyPath, store } from "./store";
import { Chart, type Plan } from "./chart";
import { plural } from "./format";
import { RANGES, type Range } from "./route";
import type { Change, History } from "./types";

/** Points asked for: more than a screen has columns of would be lost. */
const POINTS = 600;

export class Trend {
  readonly charts: Chart[];
  private history: History;
  private readonly off: (() => void)[];
  private timer = 0;
  private gone = false;

  /** `container` is `null` for the machine. `latest` gives what the stream's last tick says of it, by series. */
  constructor(
    private readonly container: string | null,
    private readonly range: Range,
    plans: Plan[],
    private readonly latest: () => Record<string, number | null | undefined> | null,
    private readonly onChanges: (changes: Change[]) => void = () => {},
  ) {
    this.charts = plans.map((plan) => new Chart(plan));
    this.history = { container, step_ms: 1000, time: [], series: {}, changes: [] };
    this.off = [
      store.on("tick", () => this.append()),
      store.on("change", (change) => this.note(change)),
      store.on("away", () => store.away || void this.load()),
    ];
    void this.load();
  }

  destroy(): void {
    this.gone = true;
    clearTimeout(this.timer);
    for (const off of this.off) off();
    for (const chart of this.charts) chart.destroy();
  }

  repaint(): void {
    for (const chart of this.charts) chart.repaint();
  }

  private async load(): Promise<void> {
    clearTimeout(this.timer);
    const now = store.at || Date.now();
    const history = await attempt<History>(historyPath(this.container, now - RANGES[this.range] * 1000, now, POINTS));
    if (this.gone) return;
    if (history) {
      this.history = { ...history, changes: history.changes ?? [] };
      this.draw();
      this.tell();
    }
    // The stream goes on where steps are seconds; else it is asked again, once a step. A container that has just begun, or an
    // agent that has just come back, is asked again soon.
    if (this.range !== "10m" || !history) this.timer = window.setTimeout(() => void this.load(), history ? Math.max(5_000, history.step_ms) : 2_000);
  }

  private append(): void {
    const latest = this.latest();
    if (this.range !== "10m" || !latest) return;
    const { time, series } = this.history;
    if (store.at <= (time.at(-1) ?? 0)) return;
    for (const key of new Set([...Object.keys(latest), ...Object.keys(series)])) {
      const column = (series[key] ??= time.map(() => null));
      column.push(latest[key] ?? null);
    }
    time.push(store.at);
    const old = time.findIndex((at) => at >= store.at - RANGES[this.range] * 1000);
    if (old > 60) {
      time.splice(0, old);
      for (const column of Object.values(series)) column.splice(0, old);
    }
    this.draw();
    if ((latest.oom_kills ?? 0) > (series.oom_kills?.at(-2) ?? Infinity)) this.tell();
  }

  private note(change: Change | undefined): void {
    if (!change || this.container === null || change.container !== this.container) return;
    const known = this.history.changes.some((other) => other.at === change.at && other.what === change.what);
    if (known) return;
    this.history.changes.push(change);
    this.tell();
    this.draw();
  }

  private tell(): void {
    this.onChanges(withKills(this.history));
  }

  private draw(): void {
    const to = (store.at || (this.history.time.at(-1) ?? Date.now())) / 1000;
    const history = { ...this.history, changes: withKills(this.history) };
    for (const chart of this.charts) chart.show(history, to - RANGES[this.range], to);
  }
}

/** The changes, with one for each time that the count of killed processes rose. */
function withKills({ container, time, series, changes }: History): Change[] {
  const kills: Change[] = [];
  let before: number | null = null;
  series.oom_kills?.forEach((count, i) => {
    if (count === null) return;
    if (before !== null && count > before) {
      kills.push({ at: time[i] as number, container, kind: "kill", what: `${plural(count - before, "process", "processes")} killed`, because: `out of memory: the kernel killed ${plural(count, "process", "processes")} in it so far (oom_kill)` });
    }
    before = count;
  });
  return kills.length ? [...changes, ...kills].sort((a, b) => a.at - b.at) : changes;
}
