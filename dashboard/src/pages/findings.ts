// What the doctor found: what happens, why we think so, and the command that removes it.

import { command, empty, h, moment, pill, prose, type Tone, visible } from "../dom";
import * as format from "../format";
import { attempt } from "../store";
import type { Finding } from "../types";
import type { Page } from "./page";

const TONES: Record<string, Tone> = { critical: "bad", warning: "warn", info: "note" };
const ORDER = ["critical", "warning", "info"];

/** The last look. */
export interface Report {
  findings: Finding[];
  looked_unix_ms: number | null;
  /** Why there is nothing newer. */
  problem: string | null;
}

export function findingView(finding: Finding): HTMLElement {
  return h(
    "article.finding", { "data-severity": finding.severity },
    h("header", {}, pill(finding.severity, TONES[finding.severity] ?? "plain"), h("code", {}, visible(finding.check)), finding.container ? h("bdi.tag", {}, visible(finding.container)) : h("span.tag", {}, "host")),
    h("p.sentence", {}, visible(finding.sentence)),
    ...(finding.fix?.commands ?? []).map(command),
    finding.advice ? h("p", {}, prose(finding.advice)) : null,
    h(
      "details", {}, h("summary", {}, "Evidence"),
      h("dl.facts", {}, ...finding.evidence.flatMap(({ file, value }) => [h("dt", {}, h("code", {}, visible(file))), h("dd", {}, visible(value))])),
      h("p.quiet", {}, visible(finding.reference)),
    ),
  );
}

export function findingsPage(): Page {
  const list = h("div.findings");
  const when = h("span.quiet");
  const refresh = async () => {
    const report = await attempt<Report>("findings");
    if (report === null) {
      if (!list.hasChildNodes()) list.replaceChildren(empty("No findings to show", "The agent has none yet. ", h("code", {}, "elbowroom doctor"), " looks now."));
      return;
    }
    const sorted = [...report.findings].sort((a, b) => ORDER.indexOf(a.severity) - ORDER.indexOf(b.severity) || a.check.localeCompare(b.check));
    when.replaceChildren(format.plural(sorted.length, "finding"), ...(report.looked_unix_ms ? [", looked at ", moment(report.looked_unix_ms)] : []), ...(report.problem ? [`; ${visible(report.problem)}`] : []));
    // What the user has opened stays open.
    const open = new Set([...list.querySelectorAll("details[open]")].map((details) => details.parentElement?.dataset.key));
    list.replaceChildren(
      ...(sorted.length
        ? sorted.map((finding) => {
            const view = findingView(finding);
            view.dataset.key = `${finding.check} ${finding.cgroup}`;
            if (open.has(view.dataset.key)) view.querySelector("details")?.setAttribute("open", "");
            return view;
          })
        : [report.looked_unix_ms === null ? empty("The doctor has not looked yet", h("code", {}, "elbowroom doctor"), " looks now.") : empty("Nothing hurts", "No check found anything that harms containers on this machine.")]),
    );
  };
  void refresh();
  const timer = setInterval(() => document.hidden || list.contains(document.activeElement) || void refresh(), 30_000);
  return {
    element: h("div", {}, h("div.tools", {}, h("h1", {}, "Findings"), when), list),
    title: "Findings",
    destroy: () => clearInterval(timer),
  };
}
