//! A report as one HTML page.

use super::{ProfileDocument, ReportBlock, ReportSection, ReportTable, overhead_text, svg};
use crate::overhead::ProfilerOverhead;
use elbowroom_client::table::Align;
use std::fmt::Write;

/// Colours are variables, so that a single rule makes the dark theme; a part's colour is its number's (Okabe and Ito, which
/// colour-blind readers can tell apart).
const STYLE: &str = "
:root { color-scheme: light dark; --paper: #fff; --ink: #222; --dim: #666; --rule: #ddd; --flame-ink: #222;
  --c0: #0072b2; --c1: #d55e00; --c2: #009e73; --c3: #cc79a7; --c4: #e69f00; --c5: #56b4e9; --c6: #8c8c8c; --c7: #b3a800; }
@media (prefers-color-scheme: dark) { :root { --paper: #16181c; --ink: #e4e4e4; --dim: #a0a0a0; --rule: #3a3d44;
  --c0: #4aa3df; --c1: #f0823a; --c2: #2fc79a; --c3: #e39cc4; --c4: #f2b73d; --c5: #8ccff2; --c6: #9c9c9c; --c7: #d8ce3a; } }
body { background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; max-width: 62rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; } figure { margin: 1.5rem 0; }
p, dd, figcaption { color: var(--dim); } figcaption { font-size: .9rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0 1.5rem; } dt { font-weight: 600; } dd { margin: 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; } .wide { overflow-x: auto; }
th, td { padding: .15rem .9rem .15rem 0; border-bottom: 1px solid var(--rule); text-align: left; } .n { text-align: right; }
th { font-weight: 600; } aside { border-left: 3px solid var(--c4); padding-left: .8rem; margin: 1rem 0; }
svg { width: 100%; height: auto; } svg text { fill: var(--ink); font: 12px system-ui, sans-serif; }
svg .rule { stroke: var(--rule); } svg .flame text { fill: var(--flame-ink); font: 11px ui-monospace, monospace; }
svg .flame rect { stroke: var(--paper); stroke-width: .5; } svg .flame g:hover rect { stroke: var(--ink); stroke-width: 1; }
";

/// The page.
pub(super) fn page(report: &ProfileDocument, overhead: &ProfilerOverhead) -> String {
    let title = escape(&report.title);
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
         content=\"width=device-width\">\n<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n<dl>\n"
    );
    for (name, value) in &report.facts {
        let _ = writeln!(page, "<dt>{}</dt><dd>{}</dd>", escape(name), escape(value));
    }
    page.push_str("</dl>\n");
    report.sections.iter().for_each(|part| section(&mut page, part));
    let _ = writeln!(page, "<p>{}</p>\n</body>\n</html>", escape(&overhead_text(overhead)));
    page
}

fn section(page: &mut String, section: &ReportSection) {
    let _ =
        writeln!(page, "<section>\n<h2>{}</h2>\n<p>{}</p>", escape(&section.title), escape(&section.text));
    for block in &section.blocks {
        match block {
            ReportBlock::Table(rows) => table(page, rows),
            ReportBlock::Lines(lines) => figure(page, &lines.title, &svg::line_chart(lines)),
            ReportBlock::Bars(bars) => figure(page, &bars.title, &svg::bar_chart(bars)),
            ReportBlock::Flame(flame) => figure(
                page,
                "Flame graph: width is CPU time, a frame stands on its caller; point at a frame for its whole name.",
                &flame.svg(),
            ),
            ReportBlock::Note(note) => {
                let _ = writeln!(page, "<aside>{}</aside>", escape(note));
            }
        }
    }
    page.push_str("</section>\n");
}

fn figure(page: &mut String, caption: &str, svg: &str) {
    let _ = writeln!(page, "<figure>\n{svg}<figcaption>{}</figcaption>\n</figure>", escape(caption));
}

fn table(page: &mut String, table: &ReportTable) {
    page.push_str("<div class=\"wide\"><table>\n<thead><tr>");
    let class = |align: Align| if align == Align::Right { " class=\"n\"" } else { "" };
    for (name, align) in &table.columns {
        let _ = write!(page, "<th{}>{}</th>", class(*align), escape(&name.to_lowercase()));
    }
    page.push_str("</tr></thead>\n<tbody>\n");
    for row in &table.rows {
        page.push_str("<tr>");
        for (cell, (_, align)) in row.iter().zip(&table.columns) {
            let _ = write!(page, "<td{}>{}</td>", class(*align), escape(cell));
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody>\n</table></div>\n");
}

/// Text as text: nothing in it begins an element, an entity or the end of an attribute; no control characters.
pub(super) fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            c if c.is_control() => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}
