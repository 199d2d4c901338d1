// Two minutes of one number in a canvas of a row: no axes, the shape is the message.

import { type Ring, SPARK } from "./store";

/** Numbers in a row that have a shape: fewer would be a dot, or a dash. */
const SHORTEST = SPARK / 12;

/** Colours as the style sheet says them, read once per theme. */
export interface Ink {
  used: string;
  usedFill: string;
  effective: string;
  limit: string;
  grid: string;
  text: string;
  other: string;
}

let ink: Ink | null = null;

export function colours(): Ink {
  if (ink) return ink;
  const style = getComputedStyle(document.documentElement);
  const of = (name: string) => style.getPropertyValue(name).trim();
  ink = {
    used: of("--used"),
    usedFill: of("--used-fill"),
    effective: of("--effective"),
    limit: of("--limit"),
    grid: of("--grid"),
    text: of("--quiet"),
    other: of("--other"),
  };
  return ink;
}

/** After the theme changed. */
export function forgetColours(): void {
  ink = null;
}

// To ask an element for its size after others were written makes the browser lay out the page at once: asked once per column, a
// row costs a twentieth of what it costs asked three times for each.
const sizes = new Map<string, [number, number]>();

function sizeOf(canvas: HTMLCanvasElement): [number, number] {
  const column = canvas.dataset.column ?? "";
  let size = sizes.get(column);
  if (!size) {
    size = [canvas.clientWidth, canvas.clientHeight];
    if (size[0] > 0) sizes.set(column, size);
  }
  return size;
}

/** After the window changed: sparklines of a column are all of one size, but not of the one they were. */
export function forgetSizes(): void {
  sizes.clear();
}

/** Draws `ring` up to second `now`; `top` is what the upper edge stands for, at least. */
export function draw(canvas: HTMLCanvasElement, ring: Ring, now: number, top: number | null | undefined): void {
  const context = canvas.getContext("2d");
  if (!context) return;
  const ratio = devicePixelRatio || 1;
  const [width, height] = sizeOf(canvas);
  const [w, t] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== t) [canvas.width, canvas.height] = [w, t];
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);

  let most = top ?? 0;
  ring.each(now, (_, value) => {
    if (value > most) most = value;
  });
  if (!(most > 0)) most = 1;
  const { used, usedFill } = colours();
  const x = (index: number) => (index / (SPARK - 1)) * (width - 2) + 1;
  const y = (value: number) => height - 1.5 - (value / most) * (height - 3);
  context.strokeStyle = used;
  context.fillStyle = usedFill;
  context.lineWidth = 1.25;
  context.lineJoin = "round";
  let run: [number, number][] = [];
  const flush = () => {
    if (run.length >= SHORTEST) {
      context.beginPath();
      for (const [px, py] of run) context.lineTo(px, py);
      context.stroke();
      context.lineTo((run.at(-1) as [number, number])[0], height);
      context.lineTo((run[0] as [number, number])[0], height);
      context.fill();
    }
    run = [];
  };
  ring.each(now, (index, value) => {
    if (Number.isNaN(value)) flush();
    else run.push([x(index), y(value)]);
  });
  flush();
}
