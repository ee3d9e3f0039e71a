// The way to the daemon: JSON by GET, and server-sent events read by fetch, which can send a token where an EventSource
// cannot. The token stays in this tab.

let token = sessionStorage.getItem("lgpu-token") ?? "";
const fragment = new URLSearchParams(location.hash.slice(1)).get("token");
if (fragment) {
  setToken(fragment);
  history.replaceState(null, "", location.pathname);
}

export function setToken(text) {
  token = text;
  sessionStorage.setItem("lgpu-token", text);
}

const headers = () => (token ? { Authorization: `Bearer ${token}` } : {});

/** The JSON of a page of the API. An Error has the daemon's message, and `status`. */
export async function get(path) {
  const answer = await fetch(path, { headers: headers(), cache: "no-store" });
  const body = await answer.json().catch(() => ({}));
  if (answer.ok) return body;
  throw Object.assign(new Error(body.message ?? `the daemon answered ${answer.status}`), { status: answer.status });
}

/** Splits what comes into events; a part of one stays for the next call. */
export function makeParser(deliver) {
  let rest = "";
  return (text) => {
    rest += text;
    for (let end = rest.indexOf("\n\n"); end >= 0; end = rest.indexOf("\n\n")) {
      let kind = "message";
      let data = "";
      for (const line of rest.slice(0, end).split("\n")) {
        if (line.startsWith("event: ")) kind = line.slice(7);
        if (line.startsWith("data: ")) data += line.slice(6);
      }
      rest = rest.slice(end + 2);
      if (data) deliver(kind, JSON.parse(data));
    }
  };
}

/**
 * Follows the daemon's live stream for ever: `on.stats`, `on.events` get messages, `on.state(text, isLost)` how it goes,
 * `on.needsToken()` says that the daemon asks for one, and waits for its promise. A page that nobody sees follows
 * nothing.
 */
export async function follow(on) {
  let pause = 500;
  for (;;) {
    await visible();
    const stop = new AbortController();
    const hidden = () => document.hidden && stop.abort();
    document.addEventListener("visibilitychange", hidden);
    try {
      const answer = await fetch("/api/v1/stream", { headers: headers(), cache: "no-store", signal: stop.signal });
      if (answer.status === 401) {
        await on.needsToken();
        continue;
      }
      if (!answer.ok) {
        const body = await answer.json().catch(() => ({}));
        throw new Error(body.message ?? `the daemon answered ${answer.status}`);
      }
      on.begin();
      const parse = makeParser((kind, data) => on[kind]?.(data));
      const decoder = new TextDecoder();
      const reader = answer.body.getReader();
      pause = 500;
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        on.state("live", false);
        parse(decoder.decode(value, { stream: true }));
      }
      on.state("lgpud has ended the connection; trying again", true);
    } catch (error) {
      if (!document.hidden) {
        on.state(`no answer from lgpud; trying again (${error.message})`, true);
      }
    } finally {
      document.removeEventListener("visibilitychange", hidden);
    }
    await new Promise((resolve) => setTimeout(resolve, pause));
    pause = Math.min(pause * 2, 5000);
  }
}

function visible() {
  if (!document.hidden) return Promise.resolve();
  return new Promise((resolve) => {
    const look = () => {
      if (document.hidden) return;
      document.removeEventListener("visibilitychange", look);
      resolve();
    };
    document.addEventListener("visibilitychange", look);
  });
}
