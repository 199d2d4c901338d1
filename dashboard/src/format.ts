// Numbers with units and times, as the command line writes them. What is not known is a dash, never a zero.

export type Maybe = number | null | undefined;

export const NONE = "–";

/** `0.24`: CPUs, everywhere with two decimals. */
export function cpu(value: Maybe): string {
  return value == null || !Number.isFinite(value) ? NONE : value.toFixed(2);
}

/** The same in words. */
export function cpuWords(value: Maybe): string {
  return value == null ? "not known" : `${cpu(value)} CPUs`;
}

const BINARY = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** `600 MiB`; three digits that say something. */
export function bytes(value: Maybe): string {
  if (value == null || !Number.isFinite(value)) return NONE;
  let unit = 0;
  let number = Math.abs(value);
  while (number >= 1023.5 && unit < BINARY.length - 1) {
    number /= 1024;
    unit += 1;
  }
  const digits = unit === 0 || number >= 99.95 ? 0 : number >= 9.995 ? 1 : 2;
  return `${value < 0 ? "−" : ""}${trim(number, digits)} ${BINARY[unit]}`;
}

/** Bytes per second. */
export function rate(value: Maybe): string {
  return value == null ? NONE : `${bytes(value)}/s`;
}

/** `17 %` of a part of one; one decimal where a whole number says little. */
export function percent(part: Maybe): string {
  if (part == null || !Number.isFinite(part)) return NONE;
  const value = part * 100;
  if (value > 0 && value < 0.05) return "<0.1 %";
  return `${Math.abs(value) < 9.95 && value !== 0 ? trim(value, 1) : Math.round(value)} %`;
}

/** Microseconds. */
export function micros(value: Maybe): string {
  if (value == null) return NONE;
  if (value < 1000) return `${Math.round(value)} µs`;
  return value < 1e6 ? `${trim(value / 1000, value < 1e4 ? 1 : 0)} ms` : `${trim(value / 1e6, 1)} s`;
}

/** A count. */
export function count(value: Maybe): string {
  return value == null ? NONE : value.toLocaleString("en");
}

/** `1 container`, `2 containers`. */
export function plural(n: number, one: string, many = `${one}s`): string {
  return `${count(n)} ${n === 1 ? one : many}`;
}

function trim(value: number, digits: number): string {
  const text = value.toFixed(digits);
  return digits > 0 ? text.replace(/\.?0+$/, "") : text;
}

const two = (n: number) => String(n).padStart(2, "0");

/** Time of day in this browser's zone; with the date when it is not today. */
export function time(unixMs: number, now = Date.now()): string {
  const at = new Date(unixMs);
  const clock = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  return at.toDateString() === new Date(now).toDateString()
    ? clock
    : `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${clock}`;
}

/** The same in UTC, to compare with a log. */
export function utc(unixMs: number): string {
  return `${new Date(unixMs).toISOString().replace("T", " ").slice(0, 19)} UTC`;
}
