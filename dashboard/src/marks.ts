// Changes on a chart: one mark where something was decided, with the reason for who points at it or walks there by keyboard.

import { h, moment, visible } from "./dom";
import { plural } from "./format";
import type { Change } from "./types";

/** Marks closer than this many pixels are one. */
const APART = 10;

/** Which chart a change belongs to. */
export function kindOf(change: Change): string {
  const word = (change.kind ?? change.what.split(/\s/, 1)[0] ?? "").toLowerCase();
  return word.startsWith("cpu") ? "cpu" : /^(mem|kill)/.test(word) ? "memory" : "disk";
}

/** The marks of one chart, laid over its plot. One of them can be reached with Tab, the others from there with the arrow keys. */
export class Marks {
  readonly element = h("div.marks", { role: "group" });
  private readonly tip = h("div.tip", { role: "tooltip", hidden: true });
  private shown = "";

  constructor(label: string) {
    this.element.setAttribute("aria-label", label);
    this.element.append(this.tip);
    this.element.addEventListener("keydown", (event) => this.walk(event));
  }

  /** Lays out `changes`; `x` gives the pixel of a moment, `width` is the plot's. */
  show(changes: Change[], x: (unixMs: number) => number, width: number): void {
    const groups: { x: number; changes: Change[] }[] = [];
    for (const change of changes) {
      const at = x(change.at);
      if (!(at >= 0 && at <= width)) continue;
      const last = groups.at(-1);
      if (last && at - last.x < APART) last.changes.push(change);
      else groups.push({ x: at, changes: [change] });
    }
    // The same marks a pixel further left are not worth new elements, and must not take the focus away.
    const signature = groups.map((group) => group.changes.map((change) => change.at).join()).join(";");
    const buttons = [...this.element.querySelectorAll("button")];
    if (signature !== this.shown) {
      this.shown = signature;
      const focused = buttons.findIndex((button) => button === document.activeElement);
      for (const button of buttons) button.remove();
      const fresh = groups.map((group, i) => this.button(group.changes, i === groups.length - 1));
      this.element.append(...fresh);
      if (focused >= 0) fresh[Math.min(focused, fresh.length - 1)]?.focus();
      else this.tip.hidden = true;
    }
    this.element.querySelectorAll("button").forEach((button, i) => {
      button.style.left = `${(groups[i] as { x: number }).x}px`;
    });
  }

  private button(changes: Change[], reachable: boolean): HTMLButtonElement {
    const words = changes.map((change) => `${change.what}: ${change.because}`).join("; ");
    const kill = changes.some((change) => change.kind === "kill");
    const button = h("button.mark", { type: "button", "data-kill": kill, tabindex: reachable ? 0 : -1, "aria-label": visible(words) }, changes.length > 1 ? h("span", {}, changes.length) : null);
    const open = () => {
      this.tip.replaceChildren(
        ...(changes.length > 4 ? [h("p.tip-more", {}, `${plural(changes.length, "change")} here, the last four:`)] : []),
        ...changes.slice(-4).map((change) => h("p", {}, moment(change.at), " ", h("b", {}, visible(change.what)), h("br"), visible(change.because))),
      );
      this.tip.hidden = false;
      const left = button.offsetLeft;
      const room = this.element.clientWidth;
      this.tip.style.left = `${Math.max(0, Math.min(left - this.tip.offsetWidth / 2, room - this.tip.offsetWidth))}px`;
    };
    const close = () => {
      this.tip.hidden = true;
    };
    button.addEventListener("pointerenter", open);
    button.addEventListener("pointerleave", () => document.activeElement === button || close());
    button.addEventListener("focus", open);
    button.addEventListener("blur", close);
    return button;
  }

  private walk(event: KeyboardEvent): void {
    const buttons = [...this.element.querySelectorAll("button")];
    const now = buttons.findIndex((button) => button === document.activeElement);
    const next = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: buttons.length - 1 }[event.key];
    if (event.key === "Escape") this.tip.hidden = true;
    if (now < 0 || next === undefined) return;
    event.preventDefault();
    const target = buttons[Math.max(0, Math.min(next, buttons.length - 1))] as HTMLButtonElement;
    (buttons[now] as HTMLButtonElement).tabIndex = -1;
    target.tabIndex = 0;
    target.focus();
  }
}
