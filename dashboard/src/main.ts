// The frame: header, banner, and whichever page the address names.

import { redeem, setToken } from "./api";
import "./app.css";
import { announce, h, mark, moment, say, visible } from "./dom";
import { help, listenKeys, PAGES } from "./keys";
import { containerPage } from "./pages/container";
import { disksPage } from "./pages/disks";
import { findingsPage } from "./pages/findings";
import { memoryPage } from "./pages/memory";
import { nodePage } from "./pages/node";
import type { Page } from "./pages/page";
import { profilesPage } from "./pages/profiles";
import { link, route } from "./route";
import { forgetColours } from "./spark";
import { store } from "./store";
import { applyTheme, nextTheme, onSystemTheme, themeName } from "./theme";

applyTheme();

const live = h("span.live", { role: "status" }, "connecting");
const themeButton = h("button.plain", { type: "button", title: "Theme (t)" });
const helpDialog = help();
const helpButton = h("button.plain", { type: "button", "aria-label": "Keyboard help", title: "Keyboard (?)", onclick: () => helpDialog.showModal() }, "?");
const tabs = PAGES.map(({ page, title }, i) => h("a", { href: link(page), "data-page": page, title: `${title} (${i + 1})` }, title));
const banner = h("div.banner", { role: "alert", hidden: true });
const main = h("main", { id: "main", tabindex: -1 });

document.body.replaceChildren(
  h("a.skip", { href: "#main", onclick: (event: Event) => (event.preventDefault(), main.focus()) }, "Skip to content"),
  h("header.top", {}, h("a.brand", { href: link("node"), "aria-label": "Elbowroom: node" }, h("img", { src: "assets/icon.svg", alt: "", width: 20, height: 20 }), h("span", {}, "elbowroom")), h("nav", { "aria-label": "Pages" }, ...tabs), live, themeButton, helpButton),
  banner,
  main,
  helpDialog,
);

/** A link of `elbowroom dashboard` has a code that works once; it does not stay in the address. */
async function enter(): Promise<boolean> {
  const code = /^#code=(\w+)$/.exec(location.hash)?.[1];
  if (!code) return false;
  history.replaceState(null, "", link("node"));
  return redeem(code);
}

let page: Page | null = null;
let shown = "";

function show(): void {
  const { page: name, subject } = route();
  for (const tab of tabs) {
    mark(tab, "aria-current", tab.dataset.page === name || (name === "container" && tab.dataset.page === "node") ? "page" : null);
    tab.href = link(tab.dataset.page ?? "node");
  }
  if (shown === `${name}/${subject}`) return;
  const moved = shown !== "";
  shown = `${name}/${subject}`;
  page?.destroy();
  page = make(name, subject);
  main.replaceChildren(page.element);
  document.title = `${page.title} – Elbowroom`;
  scrollTo(0, 0);
  if (moved) {
    main.focus({ preventScroll: true });
    announce(page.title);
  }
}

function make(name: string, subject: string): Page {
  switch (name) {
    case "container":
      return containerPage(subject);
    case "memory":
      return memoryPage();
    case "disks":
      return disksPage();
    case "findings":
      return findingsPage();
    case "profiles":
      return profilesPage(subject);
    default:
      return nodePage();
  }
}

function repaint(): void {
  forgetColours();
  page?.repaint?.();
}

function nameTheme(): void {
  const [sign, words] = themeName();
  themeButton.replaceChildren(sign, h("span.words", {}, ` ${words}`));
}

function turnTheme(): void {
  nextTheme();
  nameTheme();
  repaint();
}

/** Says that nothing answers, since when, and when it is tried again; or asks for the token. */
function connection(): void {
  const { away } = store;
  mark(document.documentElement, "data-away", away ? "" : null);
  mark(live, "data-state", away ? "away" : store.at ? "live" : null);
  say(live, away ? "away" : store.at ? "live" : "connecting");
  banner.hidden = !away;
  if (!away) return banner.replaceChildren();
  if (away.status === 401 || away.status === 403) {
    if (!banner.querySelector("form")) banner.replaceChildren(tokenForm());
    return;
  }
  if (!banner.querySelector(".since") || banner.dataset.status !== String(away.status)) {
    banner.dataset.status = String(away.status);
    const retry = h("button.plain", { type: "button", onclick: () => store.retry() }, "Try now");
    banner.replaceChildren(h("span", {}, h("b", {}, away.status > 0 && away.status < 500 ? `The agent refuses: ${visible(away.message)}` : "The agent does not answer"), " since ", moment(away.since), ". What is shown is from then; containers run on. "), h("span.since"), retry);
  }
  countdown();
}

function countdown(): void {
  const place = banner.querySelector<HTMLElement>(".since");
  if (place && store.away) say(place, `Trying again in ${Math.max(0, Math.ceil((store.away.againAt - Date.now()) / 1000))} s. `);
}

function tokenForm(): HTMLElement {
  const input = h("input.filter", { type: "password", "aria-label": "Token", placeholder: "token", autocomplete: "current-password" });
  const form = h("form", {}, h("span", {}, h("b", {}, "This address asks for a token"), ": open the newest link in the terminal of ", h("code", {}, "elbowroom dashboard"), ", or write what the agent's ", h("code", {}, "token_file"), " holds. "), input, h("button.plain", { type: "submit" }, "Go on"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    setToken(input.value.trim());
    input.value = "";
    store.retry();
  });
  return form;
}

nameTheme();
themeButton.addEventListener("click", turnTheme);
onSystemTheme(repaint);
addEventListener("hashchange", async () => {
  const entered = await enter();
  show();
  if (entered) store.retry();
});
listenKeys({
  filter: () => {
    if (!page?.focusFilter) location.hash = link("node");
    show();
    page?.focusFilter?.();
  },
  help: () => helpDialog.showModal(),
  theme: turnTheme,
  range: (step) => {
    const buttons = [...main.querySelectorAll<HTMLButtonElement>("[data-range]")];
    const now = buttons.findIndex((button) => button.getAttribute("aria-pressed") === "true");
    buttons[Math.max(0, Math.min(now + step, buttons.length - 1))]?.click();
  },
  back: () => {
    if (route().page !== "node") location.hash = link(route().page === "profiles" && route().subject ? "profiles" : "node");
  },
});
store.on("tick", connection);
store.on("away", connection);
setInterval(countdown, 500);
void enter().then(() => {
  show();
  store.start();
});
