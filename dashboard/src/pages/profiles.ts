// Saved profiles: which there are, and any of them as tables.

import { empty, h, moment, visible } from "../dom";
import * as format from "../format";
import { link } from "../route";
import { attempt } from "../store";
import type { Profile } from "../types";
import type { Page } from "./page";

/** Rows shown of one table. */
const SHOWN = 200;
/** How deep tables are nested. */
const DEEP = 4;

export function profilesPage(name: string): Page {
  const body = h("div", {}, h("p.quiet", {}, "asking the agent"));
  void (name ? one(name, body) : all(body));
  return {
    element: h("div", {}, h("div.tools", {}, name ? h("a.back", { href: link("profiles"), "aria-label": "Back to all profiles" }, "←") : null, h("h1", {}, name ? h("bdi", {}, visible(name)) : "Profiles")), body),
    title: name ? visible(name) : "Profiles",
    destroy: () => {},
  };
}

async function all(body: HTMLElement): Promise<void> {
  const profiles = (await attempt<Profile[]>("profiles")) ?? [];
  if (profiles.length === 0) {
    return body.replaceChildren(empty("No saved profiles", h("code", {}, "elbowroom profile cpu --keep"), " measures, and keeps the report for this page."));
  }
  body.replaceChildren(
    h(
      "div.scroll", { tabindex: 0, role: "region", "aria-label": "Profiles" },
      h(
        "table.plain", {},
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Profile"), h("th", { scope: "col" }, "Of"), h("th", { scope: "col" }, "Taken"), h("th", { scope: "col", "data-number": true }, "Size"))),
        h(
          "tbody", {},
          ...profiles.map((profile) =>
            h("tr", {}, h("th", { scope: "row" }, h("a", { href: link("profiles", profile.name) }, h("bdi", {}, visible(profile.name)))), h("td", {}, visible(profile.kind)), h("td", {}, moment(profile.time_unix_ms)), h("td", { "data-number": true }, format.bytes(profile.bytes))),
          ),
        ),
      ),
    ),
  );
}

async function one(name: string, body: HTMLElement): Promise<void> {
  const report = await attempt<unknown>(`profiles/${encodeURIComponent(name)}`);
  body.replaceChildren(report === null ? empty("This profile cannot be shown", "It is gone, or the agent does not answer.") : h("div.report", {}, view(report, 0)));
}

/** Any JSON: records as names and values, lists of records as tables, the rest as text. */
function view(value: unknown, depth: number): HTMLElement {
  if (value === null || typeof value !== "object") return h("span", {}, scalar(value));
  if (depth >= DEEP) return h("code", {}, visible(JSON.stringify(value).slice(0, 400)));
  if (Array.isArray(value)) {
    if (value.length === 0) return h("span.quiet", {}, "none");
    return value.every(isRecord) ? table(value as Record<string, unknown>[], depth) : value.every((item) => typeof item !== "object") ? h("span", {}, value.slice(0, SHOWN).map(scalar).join(", ")) : h("div", {}, ...value.slice(0, SHOWN).map((item) => view(item, depth + 1)));
  }
  const entries = Object.entries(value);
  const small = entries.filter(([, item]) => item === null || typeof item !== "object");
  const large = entries.filter(([, item]) => item !== null && typeof item === "object");
  return h(
    "div", {},
    small.length ? h("dl.facts", {}, ...small.flatMap(([key, item]) => [h("dt", {}, words(key)), h("dd", {}, measured(key, item))])) : null,
    ...large.map(([key, item]) => h("section", {}, h(depth === 0 ? "h2" : "h3", {}, words(key)), view(item, depth + 1))),
  );
}

function table(rows: Record<string, unknown>[], depth: number): HTMLElement {
  const columns = [...new Set(rows.slice(0, SHOWN).flatMap((row) => Object.keys(row)))];
  const numeric = new Set(columns.filter((column) => rows.slice(0, SHOWN).every((row) => row[column] == null || typeof row[column] === "number")));
  return h(
    "div.scroll", { tabindex: 0, role: "region", "aria-label": "Table" },
    h(
      "table.plain", {},
      h("thead", {}, h("tr", {}, ...columns.map((column) => h("th", { scope: "col", "data-number": numeric.has(column) }, words(column))))),
      h("tbody", {}, ...rows.slice(0, SHOWN).map((row) => h("tr", {}, ...columns.map((column) => h("td", { "data-number": numeric.has(column) }, typeof row[column] === "object" && row[column] !== null ? view(row[column], depth + 2) : measured(column, row[column])))))),
    ),
    rows.length > SHOWN ? h("p.quiet", {}, `and ${format.count(rows.length - SHOWN)} more`) : null,
  );
}

const isRecord = (value: unknown) => value !== null && typeof value === "object" && !Array.isArray(value);
const words = (key: string) => visible(key.replaceAll("_", " "));

/** A number with the unit that its name carries. */
function measured(key: string, value: unknown): string {
  if (typeof value !== "number") return scalar(value);
  if (/bytes$|_size$/.test(key)) return format.bytes(value);
  if (/_unix_ms$/.test(key)) return `${format.time(value)} (${format.utc(value)})`;
  if (/usec$/.test(key)) return format.micros(value);
  if (/_ms$/.test(key)) return format.micros(value * 1000);
  if (/seconds$/.test(key)) return format.micros(value * 1e6);
  return scalar(value);
}

function scalar(value: unknown): string {
  if (value == null) return format.NONE;
  if (typeof value === "number") return Number.isInteger(value) ? format.count(value) : value.toPrecision(4);
  return visible(String(value));
}
