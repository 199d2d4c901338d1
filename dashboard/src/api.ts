// Questions to the agent, and its stream. The stream is read with fetch, not EventSource, because that cannot send a token.

import type { Alert, Change, Tick } from "./types";

const KEY = "elbowroom-token";

/** What went wrong with a question; `status` is 0 where nothing answered. */
export class Failed extends Error {
  constructor(readonly status: number, message: string) {
    super(message);
  }
}

export function setToken(token: string): void {
  sessionStorage.setItem(KEY, token);
}

/** Exchanges the code of a link that `elbowroom dashboard` printed for the token; false where it was used before. */
export async function redeem(code: string): Promise<boolean> {
  const headers = { Authorization: `Bearer ${code}` };
  const response = await fetch("session", { method: "POST", headers, cache: "no-store" }).catch(() => null);
  if (!response?.ok) return false;
  setToken(((await response.json()) as { token: string }).token);
  return true;
}

function headers(): HeadersInit {
  const token = sessionStorage.getItem(KEY);
  return token ? { Authorization: `Bearer ${token}` } : {};
}

async function ask(path: string, signal: AbortSignal): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(`api/v1/${path}`, { headers: headers(), signal, cache: "no-store" });
  } catch (error) {
    throw new Failed(0, String(error));
  }
  if (!response.ok) throw new Failed(response.status, await why(response));
  return response;
}

async function why(response: Response): Promise<string> {
  const text = await response.text().catch(() => "");
  try {
    const { error } = JSON.parse(text) as { error?: unknown };
    if (typeof error === "string") return error;
  } catch {
    // Not every program between us and the agent speaks JSON.
  }
  return text.slice(0, 200) || response.statusText;
}

/** One answer, within ten seconds. */
export async function get<T>(path: string): Promise<T> {
  const response = await ask(path, AbortSignal.timeout(10_000));
  return (await response.json()) as T;
}

export interface Listener {
  tick(tick: Tick): void;
  change(change: Change): void;
  alert(alert: Alert): void;
  /** The stream answers, after it did not; the first tick was just given. */
  here(): void;
  /** It does not: why, and in how many milliseconds it is asked again. */
  away(failure: Failed, againInMs: number): void;
}

/** No event for this long, and the stream counts as dead: the agent sends one a second. */
const SILENCE_MS = 6_000;

/** Listens for ever. `retry` asks again at once. */
export function listen(to: Listener): { retry(): void } {
  let wake = () => {};
  void (async () => {
    for (let failures = 0; ; ) {
      let heard = false;
      const failure = await once(to, () => {
        if (!heard) to.here();
        heard = true;
      });
      failures = heard ? 1 : failures + 1;
      const wait = Math.min(10_000, 500 * 2 ** Math.min(failures - 1, 5));
      to.away(failure, wait);
      await new Promise<void>((resolve) => {
        wake = resolve;
        setTimeout(resolve, wait);
      });
    }
  })();
  return { retry: () => wake() };
}

async function once(to: Listener, heard: () => void): Promise<Failed> {
  const control = new AbortController();
  let timer = setTimeout(() => control.abort(), SILENCE_MS);
  try {
    const { body } = await ask("stream", control.signal);
    if (!body) return new Failed(0, "the stream is empty");
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    const parse = events((name, data) => {
      if (name === "snapshot") {
        to.tick(JSON.parse(data) as Tick);
        heard();
      } else if (name === "change") to.change(JSON.parse(data) as Change);
      else if (name === "alert") to.alert(JSON.parse(data) as Alert);
    });
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return new Failed(0, "the stream ended");
      clearTimeout(timer);
      timer = setTimeout(() => control.abort(), SILENCE_MS);
      parse(value);
    }
  } catch (error) {
    return error instanceof Failed ? error : new Failed(0, String(error));
  } finally {
    clearTimeout(timer);
    control.abort();
  }
}

/** Splits a stream of server-sent events, however it is cut into pieces. */
export function events(each: (name: string, data: string) => void): (piece: string) => void {
  let rest = "";
  let name = "message";
  let data: string[] = [];
  return (piece) => {
    rest += piece;
    for (let end = rest.indexOf("\n"); end >= 0; end = rest.indexOf("\n")) {
      const line = rest.slice(0, end).replace(/\r$/, "");
      rest = rest.slice(end + 1);
      if (line === "") {
        if (data.length > 0) each(name, data.join("\n"));
        name = "message";
        data = [];
      } else if (line.startsWith("event:")) name = line.slice(6).trim();
      else if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
    }
  };
}
