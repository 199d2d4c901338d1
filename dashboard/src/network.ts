// A container's network: bytes per second between two answers of the agent, which counts nothing by itself and is asked only while
// this chart is looked at.

import { Failed, get } from "./api";
import { Chart, type Plan } from "./chart";
import { h, say } from "./dom";
import { RANGES, type Range } from "./route";
import { store } from "./store";
import type { History, NetworkReport } from "./types";

const PERIOD_MS = 2_000;
/** What the chart is wide at least. */
const LEAST_SECONDS = 60;
const KEPT_MS = RANGES["24h"] * 1000;

export class NetworkTrend {
  /** The chart, and what there is to say of it. */
  readonly elements: HTMLElement[];
  private readonly chart: Chart;
  private readonly note = h("p.quiet", { hidden: true });
  private readonly history: History;
  private last: NetworkReport | null = null;
  private timer = 0;
  private gone = false;

  constructor(private readonly container: string, private range: Range, plan: Plan) {
    this.chart = new Chart(plan);
    this.chart.element.hidden = true;
    this.elements = [this.chart.element, this.note];
    this.history = { container, step_ms: PERIOD_MS, time: [], series: { network_received: [], network_sent: [] }, changes: [] };
    void this.follow();
  }

  destroy(): void {
    this.gone = true;
    clearTimeout(this.timer);
    this.chart.destroy();
  }

  repaint(): void {
    this.chart.repaint();
  }

  /** Shows another length of time. */
  show(range: Range): void {
    this.range = range;
    this.draw();
  }

  /** Asks for ever, until there is nothing to ask for: the container is gone, it shares the host's network, or this is a recording. */
  private async follow(): Promise<void> {
    let on = true;
    if (!document.hidden && !store.away) {
      try {
        on = this.take(await get<NetworkReport>(`containers/${encodeURIComponent(this.container)}/network`));
      } catch (error) {
        on = !(error instanceof Failed && error.status === 404);
      }
    }
    if (on && !this.gone) this.timer = window.setTimeout(() => void this.follow(), PERIOD_MS);
  }

  /** Whether more is to be expected. */
  private take(report: NetworkReport): boolean {
    if (this.gone) return false;
    const { counters, time_unix_ms: now } = report;
    say(this.note, counters ? "" : "There is no chart of its network: it shares the host's, which counts the bytes of all programs together.");
    this.note.hidden = counters !== null;
    const before = this.last;
    this.last = report;
    if (!counters) return false;
    const seconds = before ? (now - before.time_unix_ms) / 1000 : 0;
    if (!before?.counters || seconds <= 0) return true;
    // An interface that was taken away took its count along.
    const rate = (count: number, earlier: number) => (count < earlier ? null : (count - earlier) / seconds);
    const { time, series } = this.history;
    const columns = [time, ...Object.values(series)];
    time.push(now);
    series.network_received?.push(rate(counters.received_bytes, before.counters.received_bytes));
    series.network_sent?.push(rate(counters.sent_bytes, before.counters.sent_bytes));
    if ((time[0] ?? now) < now - KEPT_MS) for (const column of columns) column.shift();
    this.draw();
    return true;
  }

  /** What there is of the time that the other charts show: at first it would be a sliver at their right end. */
  private draw(): void {
    const [first, last] = [this.history.time[0], this.history.time.at(-1)];
    if (first === undefined || last === undefined) return;
    const seconds = Math.min(RANGES[this.range], Math.max(LEAST_SECONDS, (last - first) / 1000));
    this.chart.show(this.history, last / 1000 - seconds, last / 1000);
  }
}
