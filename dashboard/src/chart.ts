// One chart: effective, limit and used over time. uPlot draws it; the readout above it and the marks on it are elements.

import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { h, say } from "./dom";
import { NONE, time } from "./format";
import { Marks, kindOf } from "./marks";
import { colours, type Ink } from "./spark";
import type { Change, History } from "./types";

/** What a line means decides how it looks: colour is never all that tells them apart. */
export type Role = "used" | "effective" | "limit" | "rate" | "other";

export interface Line {
  series: string;
  label: string;
  role: Role;
}

export interface Plan {
  title: string;
  kind: "cpu" | "memory" | "disk" | "waiting" | "refaults" | "network";
  lines: Line[];
  format: (value: number | null | undefined) => string;
  height: number;
  /** Step of the value axis: whole numbers of bytes need other steps than CPUs. */
  binary: boolean;
  /** What the value axis reaches at least. */
  floor: number;
  marks?: boolean;
  /** Whether the chart is only there where the agent has one of its numbers. */
  optional?: boolean;
}

const CPU_STEPS = [0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512];
const BINARY_STEPS = Array.from({ length: 50 }, (_, i) => 2 ** i);

const CURSOR = "elbowroom";

export class Chart {
  readonly element: HTMLElement;
  private readonly readout: { line: Line; value: HTMLElement }[];
  private readonly when = h("span.readout-when");
  private readonly plotBox = h("div.plot");
  private readonly marks: Marks;
  private plot: uPlot | null = null;
  private data: uPlot.AlignedData = [[]];
  private changes: Change[] = [];
  /** From and to, in seconds. */
  private shown: [number, number] = [0, 1];
  private readonly watcher = new ResizeObserver(() => this.resize());

  constructor(private readonly plan: Plan) {
    this.marks = new Marks(`Changes of ${plan.title}`);
    this.readout = plan.lines.map((line) => ({ line, value: h("b") }));
    this.element = h(
      "figure.chart", { "aria-label": plan.title },
      h(
        "figcaption.readout", {},
        h("span.readout-title", {}, plan.title),
        ...this.readout.map(({ line, value }) => h("span.key", { "data-role": line.role }, h("i"), `${line.label} `, value)),
        this.when,
      ),
      this.plotBox,
    );
    this.watcher.observe(this.plotBox);
  }

  /** Shows `history` between two moments, in seconds. */
  show(history: History, from: number, to: number): void {
    const seconds = history.time.map((ms) => ms / 1000);
    const columns = this.plan.lines.map(({ series }) => history.series[series] ?? seconds.map(() => null));
    this.element.hidden = this.plan.optional === true && !this.plan.lines.some(({ series }) => history.series[series]?.some((value) => value != null));
    this.data = gaps([seconds, ...columns], (history.step_ms / 1000) * 3);
    this.changes = this.plan.marks ? history.changes.filter((change) => kindOf(change) === this.plan.kind) : [];
    this.shown = [from, to];
    if (!this.plot) this.build();
    this.plot?.setData(this.data, false);
    this.zoom(from, to);
    this.layMarks();
    this.read();
  }

  /** After the theme changed: colours are drawn, not styled. */
  repaint(): void {
    this.plot?.destroy();
    this.plot = null;
    this.build();
    const [from, to] = this.shown;
    this.zoom(from, to);
    this.layMarks();
    this.read();
  }

  destroy(): void {
    this.watcher.disconnect();
    this.plot?.destroy();
    this.plot = null;
  }

  private zoom(min: number, max: number): void {
    this.plot?.setScale("x", { min, max });
  }

  private build(): void {
    const width = this.plotBox.clientWidth;
    if (width === 0) return;
    const ink = colours();
    const { plan } = this;
    const font = "11px system-ui, sans-serif";
    this.plot = new uPlot(
      {
        width,
        height: plan.height,
        padding: [plan.marks ? 16 : 6, 24, 0, 0],
        legend: { show: false },
        cursor: { sync: { key: CURSOR, setSeries: false }, y: false, drag: { x: false, y: false }, points: { size: 5 } },
        scales: { x: { time: true }, y: { range: (_, __, max) => [0, Math.max(max * 1.06, plan.floor)] } },
        axes: [
          { stroke: ink.text, font, size: 24, gap: 3, grid: { show: false }, ticks: { stroke: ink.grid, size: 4, width: 1 }, space: 70, values: clock },
          {
            stroke: ink.text, font, size: plan.marks ? 64 : 58, gap: 4, space: 30,
            grid: { stroke: ink.grid, width: 1 }, ticks: { show: false },
            values: (_, splits) => splits.map((value) => plan.format(value)),
            incrs: plan.binary ? BINARY_STEPS : CPU_STEPS,
          },
        ],
        series: [{}, ...plan.lines.map((line) => look(line, ink))],
        hooks: { setCursor: [() => this.read()] },
      },
      this.data,
      this.plotBox,
    );
    if (plan.marks) this.plot.over.append(this.marks.element);
  }

  private resize(): void {
    const width = this.plotBox.clientWidth;
    if (width === 0) return;
    if (!this.plot) {
      this.build();
      this.zoom(...this.shown);
    } else if (this.plot.width !== width) this.plot.setSize({ width, height: this.plan.height });
    this.layMarks();
  }

  private layMarks(): void {
    const { plot } = this;
    if (plot && this.plan.marks) this.marks.show(this.changes, (ms) => plot.valToPos(ms / 1000, "x"), plot.over.clientWidth);
  }

  /** The numbers under the pointer, or the last ones. */
  private read(): void {
    const pointed = this.plot?.cursor.idx;
    const last = this.data[0].length - 1;
    const index = pointed ?? last;
    this.readout.forEach(({ value }, i) => {
      const column = this.data[i + 1];
      const shown = pointed == null ? lastKnown(column, last) : column?.[index];
      say(value, shown == null ? NONE : this.plan.format(shown));
    });
    const at = this.data[0][index];
    say(this.when, pointed != null && at != null ? time(at * 1000) : "");
  }
}

function look({ role, label }: Line, ink: Ink): uPlot.Series {
  const stepped = uPlot.paths.stepped?.({ align: 1 });
  const shared = { label, points: { show: false }, spanGaps: false };
  switch (role) {
    case "used":
      return { ...shared, stroke: ink.used, fill: ink.usedFill, width: 1.25 };
    case "rate":
      return { ...shared, stroke: ink.effective, width: 1.25 };
    case "other":
      return { ...shared, stroke: ink.other, width: 1.25, dash: [2, 2] };
    case "effective":
      return { ...shared, stroke: ink.effective, width: 2, ...(stepped ? { paths: stepped } : {}) };
    case "limit":
      return { ...shared, stroke: ink.limit, width: 1, dash: [6, 4], ...(stepped ? { paths: stepped } : {}) };
  }
}

/** A last column that is still being measured must not hide what was known a moment ago. */
function lastKnown(column: ArrayLike<number | null | undefined> | undefined, last: number): number | null {
  for (let i = last; column && i >= 0 && i > last - 4; i--) if (column[i] != null) return column[i] as number;
  return null;
}

/** Where nothing was measured for `most` seconds the line is broken. */
function gaps(data: (number | null)[][], most: number): uPlot.AlignedData {
  const time = data[0] as number[];
  const out: (number | null)[][] = data.map(() => []);
  time.forEach((second, i) => {
    const before = time[i - 1];
    if (before !== undefined && second - before > most) {
      out.forEach((column, c) => column.push(c === 0 ? before + 0.001 : null));
    }
    out.forEach((column, c) => column.push(data[c]?.[i] ?? null));
  });
  return out as unknown as uPlot.AlignedData;
}

/** Labels of the time axis: seconds only where they matter. */
function clock(_: uPlot, splits: number[]): string[] {
  const step = (splits[1] ?? 0) - (splits[0] ?? 0);
  return splits.map((second) => {
    const text = time(second * 1000, second * 1000);
    return step < 60 ? text : text.slice(0, 5);
  });
}
