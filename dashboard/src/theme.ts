// Dark or light: as the system is, or as it was chosen here.

const KEY = "elbowroom-theme";
const THEMES = ["auto", "light", "dark"] as const;
type Theme = (typeof THEMES)[number];
const NAMES: Record<Theme, [string, string]> = { auto: ["◐", "as the system"], light: ["○", "light"], dark: ["●", "dark"] };

export function theme(): Theme {
  const kept = localStorage.getItem(KEY);
  return kept === "light" || kept === "dark" ? kept : "auto";
}

export function applyTheme(): void {
  document.documentElement.dataset.theme = theme();
}

export function nextTheme(): void {
  const next = THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length] as Theme;
  if (next === "auto") localStorage.removeItem(KEY);
  else localStorage.setItem(KEY, next);
  applyTheme();
}

/** A sign and words. */
export function themeName(): [string, string] {
  return NAMES[theme()];
}

/** Calls back when the system's theme changes. */
export function onSystemTheme(changed: () => void): void {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
}
