// What is shown is in the address, so that it can be sent to another person and survives a reload.

export const RANGES = { "10m": 600, "2h": 7200, "24h": 86400 } as const;
export type Range = keyof typeof RANGES;

export interface Route {
  page: string;
  /** What the page is about: a container's id, a profile's name. */
  subject: string;
  query: URLSearchParams;
}

export function route(hash = location.hash): Route {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const [page = "", ...rest] = path.split("/");
  return { page: page || "node", subject: decode(rest.join("/")), query: new URLSearchParams(query) };
}

/** The address of a page. The chosen range goes along. */
export function link(page: string, subject = "", keep: Record<string, string> = {}): string {
  const query = new URLSearchParams(keep);
  const range = route().query.get("range");
  if (range && !query.has("range")) query.set("range", range);
  const text = query.toString();
  return `#/${page === "node" ? "" : page}${subject ? `/${encodeURIComponent(subject)}` : ""}${text ? `?${text}` : ""}`;
}

/** Changes parts of the query in place; an empty value removes it. */
export function remember(changes: Record<string, string>): void {
  const { page, subject, query } = route();
  for (const [key, value] of Object.entries(changes)) {
    if (value) query.set(key, value);
    else query.delete(key);
  }
  const text = query.toString();
  const path = `#/${page === "node" ? "" : page}${subject ? `/${encodeURIComponent(subject)}` : ""}`;
  history.replaceState(null, "", `${path}${text ? `?${text}` : ""}`);
}

export function range(): Range {
  const chosen = route().query.get("range") ?? "";
  return chosen in RANGES ? (chosen as Range) : "10m";
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
