// Requests to the admin API. The token stays in this tab (sessionStorage) and is never part of a URL.

const TOKEN = "quire.token";

export class Refused extends Error {
  constructor(readonly status: number, message: string) {
    super(message);
  }
}

export const token = {
  get: () => sessionStorage.getItem(TOKEN) ?? "",
  set: (value: string) => (value ? sessionStorage.setItem(TOKEN, value) : sessionStorage.removeItem(TOKEN)),
};

function headers(): Record<string, string> {
  const shown = token.get();
  return shown ? { Authorization: `Bearer ${shown}` } : {};
}

// A broker that does not own the topic would redirect to another origin, which drops the token: `authoritative` lets it
// forward the request instead.
function url(path: string): string {
  return `${path}${path.includes("?") ? "&" : "?"}authoritative=true`;
}

async function refusal(answer: Response): Promise<Refused> {
  const text = await answer.text();
  let reason = text.slice(0, 300) || `HTTP ${answer.status}`;
  try {
    const found = JSON.parse(text) as { reason?: string; error?: string };
    reason = found.reason ?? found.error ?? reason;
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error;
  }
  return new Refused(answer.status, reason);
}

export async function ask<T>(path: string, method = "GET", body?: unknown): Promise<T> {
  const sent: Record<string, string> = body === undefined ? {} : { "Content-Type": "application/json" };
  const answer = await fetch(url(path), {
    method,
    headers: { ...headers(), ...sent },
    body: body === undefined ? undefined : JSON.stringify(body),
    cache: "no-store",
  });
  if (!answer.ok) throw await refusal(answer);
  const text = await answer.text();
  return (text ? JSON.parse(text) : undefined) as T;
}

// Server-sent events over fetch, since EventSource cannot send a token. The server ends a stream after a minute.
export function follow<T>(path: string, onEvent: (event: T) => void, onState: (problem: string) => void): () => void {
  const ended = new AbortController();
  let pause = 1000;
  const once = async () => {
    const answer = await fetch(path, { headers: headers(), signal: ended.signal, cache: "no-store" });
    if (!answer.ok || !answer.body) throw await refusal(answer);
    onState("");
    pause = 1000;
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let text = ""; ; ) {
      const { done, value } = await reader.read();
      if (done) return;
      const events = (text + value).split("\n\n");
      text = events.pop() ?? "";
      for (const event of events) onEvent(JSON.parse(event.replace(/^data: /, "")) as T);
    }
  };
  const run = async () => {
    while (!ended.signal.aborted) {
      try {
        await once();
      } catch (error) {
        if (ended.signal.aborted) return;
        onState(error instanceof Error ? error.message : String(error));
        if (error instanceof Refused && [401, 403, 404].includes(error.status)) return;
        await new Promise((done) => setTimeout(done, pause));
        pause = Math.min(pause * 2, 30000);
      }
    }
  };
  void run();
  return () => ended.abort();
}

export const part = encodeURIComponent;

export interface TopicName {
  tenant: string;
  namespace: string;
  local: string;
}

export function topicPath(name: TopicName): string {
  return `persistent/${part(name.tenant)}/${part(name.namespace)}/${part(name.local)}`;
}
