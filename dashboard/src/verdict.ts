// One verdict per container: how bad it is, in a word; and the list of those that need attention.

import { announce, command, h, moment, nameOf, pill, say, type Tone, visible } from "./dom";
import * as format from "./format";
import { link } from "./route";
import type { Ended, Live, Verdict } from "./types";

/** Worst first. A status that is not known here is worse than `ok` and better than the others. */
const STATUSES: [string, Tone, string][] = [
  ["killed", "bad", "killed"],
  ["waiting_memory", "warn", "waiting (memory)"],
  ["waiting_disk", "warn", "waiting (disk)"],
  ["waiting_cpu", "warn", "waiting (CPU)"],
  ["throttled", "warn", "throttled"],
  ["unfair", "warn", "unfair"],
  ["tight", "mild", "tight"],
];

/** What the list is made of: containers that run, and such that ended. */
type Subject = Pick<Live, "id" | "name" | "verdict"> & Partial<Pick<Ended, "ended_unix_ms">>;

type MaybeVerdict = Verdict | null | undefined;

/** 0 for a container that is well, more for a worse one. An agent that says nothing says ok. */
export function badness(verdict: MaybeVerdict): number {
  if (!verdict || verdict.status === "ok") return 0;
  const at = STATUSES.findIndex(([status]) => status === verdict.status);
  return at < 0 ? 0.5 : STATUSES.length - at;
}

export function verdictPill(verdict: MaybeVerdict): HTMLElement {
  if (!verdict || badness(verdict) === 0) return pill("ok", "good");
  const [, tone, word] = STATUSES.find(([status]) => status === verdict.status) ?? ["", "mild" as const, visible(verdict.status)];
  return pill(word, tone, visible(verdict.reason));
}

/** The verdict as a container's page begins with it: the sentence, and the command that helps. */
export function verdictCard(verdict: MaybeVerdict): HTMLElement {
  return h(
    "section.verdict", { "aria-label": "Verdict", "data-tone": badness(verdict) === 0 ? "good" : verdict?.status === "killed" ? "bad" : "warn" },
    h("p.sentence", {}, verdictPill(verdict), " ", visible(verdict?.reason || "it gets what it asks for")),
    verdict?.command ? command(verdict.command) : null,
  );
}

/** Containers listed before the rest is only counted. */
const LISTED = 3;

/** The containers that need attention, worst first. An entry stays the same element: a button under the pointer does not move away. */
export class Sick {
  readonly element = h("section.sick", { "aria-label": "Containers that need attention", hidden: true });
  private readonly title = h("h2");
  private readonly list = h("ul");
  private readonly more = h("p.quiet");
  private readonly entries = new Map<string, { element: HTMLElement; sentence: HTMLElement; shown: string }>();
  private count = 0;

  constructor() {
    this.element.append(this.title, this.list, this.more);
  }

  show(all: Subject[]): void {
    const sick = all.filter(({ verdict }) => badness(verdict) > 0).sort((a, b) => badness(b.verdict) - badness(a.verdict) || (a.id < b.id ? -1 : 1));
    this.element.hidden = sick.length === 0;
    say(this.title, `${format.plural(sick.length, "container needs", "containers need")} attention`);
    if (sick.length > this.count) announce(this.title.textContent ?? "");
    this.count = sick.length;
    const listed = sick.slice(0, LISTED);
    for (const [id, { element }] of this.entries) {
      if (listed.some((live) => live.id === id)) continue;
      element.remove();
      this.entries.delete(id);
    }
    listed.forEach((live, i) => {
      const entry = this.entry(live);
      if (this.list.children[i] !== entry) this.list.insertBefore(entry, this.list.children[i] ?? null);
    });
    this.more.hidden = sick.length <= LISTED;
    if (!this.more.hidden) this.more.replaceChildren(`and ${format.count(sick.length - LISTED)} more, `, h("a", { href: link("node", "", { show: "sick" }) }, "first in the table below"));
  }

  private entry(live: Subject): HTMLElement {
    const verdict = live.verdict as Verdict;
    const shown = `${verdict.status} ${verdict.command ?? ""} ${nameOf(live)} ${live.ended_unix_ms ?? ""}`;
    let entry = this.entries.get(live.id);
    if (entry?.shown !== shown) {
      const sentence = h("span.sentence");
      const element = h("li", {}, h("p", {}, verdictPill(verdict), h("a", { href: link("container", live.id) }, h("bdi", {}, nameOf(live))), live.ended_unix_ms ? h("span.quiet", {}, "ended at ", moment(live.ended_unix_ms)) : null, sentence), verdict.command ? command(verdict.command) : null);
      entry?.element.replaceWith(element);
      this.entries.set(live.id, (entry = { element, sentence, shown }));
    }
    say(entry.sentence, visible(verdict.reason));
    return entry.element;
  }
}

/** Containers that ended within the last hour, folded away. */
export function endedList(ended: Ended[]): HTMLElement {
  return h(
    "ul", {},
    ...ended.map(({ id, name, ended_unix_ms, verdict }) =>
      h("li", {}, ended_unix_ms ? h("span.quiet", {}, moment(ended_unix_ms)) : null, h("a", { href: link("container", id) }, h("bdi", {}, nameOf({ id, name }))), ...(verdict && badness(verdict) > 0 ? [verdictPill(verdict), h("span", {}, visible(verdict.reason))] : [])),
    ),
  );
}
