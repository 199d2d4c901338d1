// Elements. Everything that the agent says becomes a text node here: there is no other way into the page, so a container may
// be called whatever it likes.

import { time as local, utc } from "./format";

type Child = Node | string | number | null | undefined | false;
type Attributes = Record<string, string | number | boolean | null | undefined | ((event: never) => void)>;

/** `h("a.quiet", { href, onclick }, "text")`. */
export function h<K extends keyof HTMLElementTagNameMap>(tag: K | `${K}.${string}`, attributes: Attributes = {}, ...children: Child[]) {
  const [name, ...classes] = tag.split(".");
  const element = document.createElement(name as K);
  if (classes.length > 0) element.className = classes.join(" ");
  for (const [key, value] of Object.entries(attributes)) {
    if (value == null || value === false) continue;
    if (typeof value === "function") element.addEventListener(key.slice(2), value as EventListener);
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  element.append(...children.filter((child) => child != null && child !== false).map((child) => (typeof child === "number" ? String(child) : (child as Node | string))));
  return element;
}

/** Sets text only where it differs: no layout for nothing. */
export function say(element: HTMLElement, text: string): void {
  if (element.textContent !== text) element.textContent = text;
}

/** Sets or removes an attribute, only where it differs. */
export function mark(element: Element, name: string, value: string | null): void {
  if (element.getAttribute(name) === value) return;
  if (value === null) element.removeAttribute(name);
  else element.setAttribute(name, value);
}

// Control characters and those that turn text around would let one name look like another.
const INVISIBLE = /[\p{Cc}\p{Cf}\u2028\u2029]/gu;

/** A foreign name, with what cannot be seen made visible. */
export function visible(text: string): string {
  return text.replace(INVISIBLE, (c) => `\\u${c.codePointAt(0)!.toString(16).padStart(4, "0")}`);
}

/** The name people use, or a short id. */
export function nameOf(container: { id: string; name: string | null }): string {
  return visible(container.name || container.id.slice(0, 12));
}

/** A moment in local time, with UTC for who hovers or listens. */
export function moment(unixMs: number): HTMLTimeElement {
  return h("time", { datetime: new Date(unixMs).toISOString(), title: utc(unixMs) }, local(unixMs));
}

/** A pill: a word with a glyph, so that colour is never all that tells. */
export function pill(word: string, tone: Tone, title?: string): HTMLElement {
  return h("span.pill", { "data-tone": tone, title }, h("span.glyph", { "aria-hidden": "true" }, GLYPH[tone]), word);
}

export type Tone = "good" | "note" | "mild" | "warn" | "bad" | "plain";
const GLYPH: Record<Tone, string> = { good: "●", note: "◆", mild: "◆", warn: "▲", bad: "■", plain: "○" };

/** Used within effective within limit, as one bar; all in parts of the widest. */
export class Bullet {
  readonly element: HTMLElement;
  private readonly room = h("i.bullet-room");
  private readonly used = h("i.bullet-used");
  private readonly tick = h("i.bullet-tick");

  constructor() {
    this.element = h("span.bullet", { "aria-hidden": "true" }, this.room, this.used, this.tick);
  }

  set(used: number | null | undefined, effective: number | null | undefined, limit: number | null | undefined): void {
    const whole = Math.max(limit ?? 0, effective ?? 0, 1e-9);
    const part = (value: number | null | undefined) => Math.min(1, Math.max(0, (value ?? 0) / whole));
    this.room.style.width = `${part(effective) * 100}%`;
    this.used.style.width = `${part(used) * 100}%`;
    this.tick.style.left = `${part(effective) * 100}%`;
    this.tick.hidden = effective == null;
    mark(this.element, "data-full", used != null && effective != null && used >= effective * 0.95 ? "" : null);
  }
}

/** A command with a button that copies it. */
export function command(text: string): HTMLElement {
  const button = h("button.copy", { type: "button", "aria-label": `Copy: ${text}` }, "Copy");
  button.addEventListener("click", async () => {
    const copied = await copy(text);
    button.textContent = copied ? "Copied" : "Press Ctrl-C";
    announce(copied ? "Copied" : "The command is selected: press Ctrl-C");
    if (!copied) getSelection()?.selectAllChildren(code);
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  const code = h("code", {}, visible(text));
  return h("div.command", {}, code, button);
}

// Without TLS or localhost a browser gives no clipboard; the person still has a selection.
async function copy(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}

const region = h("div.unseen", { role: "status", "aria-live": "polite" });

/** Says something to who listens to the page instead of looking. */
export function announce(text: string): void {
  if (!region.isConnected) document.body.append(region);
  region.textContent = text;
}

/** A sentence in which `what is quoted like this` is something to type. */
export function prose(text: string): HTMLElement {
  return h("span", {}, ...visible(text).split("`").map((part, i) => (i % 2 ? h("code", {}, part) : part)));
}

/** What the pieces of a drawing mean. */
export function key(...pieces: [string, string][]): HTMLElement {
  return h("p.legend", { "aria-hidden": "true" }, ...pieces.map(([kind, words]) => h("span", {}, h("i", { "data-kind": kind }), words)));
}

/** A list of names and values. */
export function facts(rows: [string, Child | Child[], string?][]): HTMLElement {
  return h("dl.facts", {}, ...rows.flatMap(([name, value, title]) => [h("dt", { title }, name), h("dd", {}, ...(Array.isArray(value) ? value : [value]))]));
}

/** A bar for a part of a whole, with marks at other parts. */
export function bar(part: number | null, label: string, marks: { at: number; title: string; kind: string }[] = []): HTMLElement {
  const fill = h("i.bar-fill");
  fill.style.width = `${Math.min(1, Math.max(0, part ?? 0)) * 100}%`;
  return h(
    "span.bar", { role: "img", "aria-label": label, title: label }, fill,
    ...marks.map(({ at, title, kind }) => {
      const tick = h("i.bar-mark", { title, "data-kind": kind });
      tick.style.left = `${Math.min(1, Math.max(0, at)) * 100}%`;
      return tick;
    }),
  );
}

/** What a page says where it has nothing to show. */
export function empty(title: string, ...words: Child[]): HTMLElement {
  return h("div.empty", {}, h("p.empty-title", {}, title), h("p", {}, ...words));
}
