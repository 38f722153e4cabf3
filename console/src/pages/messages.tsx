// Messages of a topic: by position, time and key, decoded by their schema; and a form to publish one.
import { useState } from "preact/hooks";
import { ask, part, topicPath, type TopicName } from "../api";
import { base64Of, bytesOf, decode, type StoredSchema, versionOf } from "../decode";
import { Problem, time } from "../parts";

interface Message {
  ledgerId: number;
  entryId: number;
  batchIndex: number;
  key: string | null;
  properties: Record<string, string>;
  publishTimeMs: number;
  eventTimeMs: number | null;
  producer: string;
  chunk: string | null;
  schemaVersion: string;
  encrypted: boolean;
  payload: string | null;
  unreadable?: string;
}
interface Page {
  messages: Message[];
  next: string | null;
  entriesRead: number;
}

const COUNT = 20;

export function Messages({ name }: { name: TopicName }) {
  const root = `/admin/quire/topics/${topicPath(name)}/messages`;
  const [from, setFrom] = useState("latest");
  const [id, setId] = useState("");
  const [when, setWhen] = useState("");
  const [key, setKey] = useState("");
  const [page, setPage] = useState<Page>();
  const [schemas, setSchemas] = useState<Map<number, StoredSchema>>(new Map());
  const [error, setError] = useState<Error>();
  const [busy, setBusy] = useState(false);

  const read = async (start: string) => {
    setBusy(true);
    setError(undefined);
    try {
      const query = new URLSearchParams({ from: start, count: String(COUNT) });
      if (key) query.set("key", key);
      const found = await ask<Page>(`${root}?${query}`);
      setSchemas(await schemasOf(name));
      setPage(found);
    } catch (problem) {
      setError(problem as Error);
    } finally {
      setBusy(false);
    }
  };
  const begin = async (event: Event) => {
    event.preventDefault();
    if (from === "id") return read(id.trim());
    if (from !== "time") return read(from);
    try {
      const found = await ask<{ ledgerId: number; entryId: number }>(
        `/admin/v2/${topicPath(name)}/messageid/${new Date(when).getTime()}`,
      );
      await read(`${found.ledgerId}:${found.entryId}`);
    } catch (problem) {
      setError(problem as Error);
    }
  };
  return (
    <section>
      <h2>Messages</h2>
      <form class="row" onSubmit={begin}>
        <label>
          Start
          <select value={from} onChange={(event) => setFrom(event.currentTarget.value)}>
            <option value="latest">the last ones</option>
            <option value="earliest">the first ones</option>
            <option value="id">at an id</option>
            <option value="time">at a time</option>
          </select>
        </label>
        {from === "id" && (
          <label>
            ledger:entry
            <input required pattern="\s*\d+:\d+\s*" value={id} onInput={(event) => setId(event.currentTarget.value)} />
          </label>
        )}
        {from === "time" && (
          <label>
            Published since
            <input type="datetime-local" step="1" required value={when} onInput={(event) => setWhen(event.currentTarget.value)} />
          </label>
        )}
        <label>
          Only with this key
          <input value={key} onInput={(event) => setKey(event.currentTarget.value)} />
        </label>
        <button type="submit" disabled={busy}>Read</button>
      </form>
      {error && <Problem error={error} />}
      {page && (
        <div role="status">
          {page.messages.length} messages of {page.entriesRead} entries
          {page.next ? "" : "; the end of the topic"}
        </div>
      )}
      {page?.messages.map((one) => <Shown message={one} schemas={schemas} />)}
      {page?.next && <button disabled={busy} onClick={() => void read(page.next!)}>Go on at {page.next}</button>}
      <Publish name={name} root={root} />
    </section>
  );
}

async function schemasOf(name: TopicName): Promise<Map<number, StoredSchema>> {
  const base = name.local.replace(/-partition-\d+$/, "");
  const found = await ask<{ getSchemaResponses: StoredSchema[] }>(
    `/admin/v2/schemas/${part(name.tenant)}/${part(name.namespace)}/${part(base)}/schemas`,
  ).catch(() => ({ getSchemaResponses: [] }));
  return new Map(found.getSchemaResponses.map((one) => [one.version, one]));
}

function Shown({ message, schemas }: { message: Message; schemas: Map<number, StoredSchema> }) {
  const version = versionOf(message.schemaVersion);
  const schema = version === null ? undefined : schemas.get(version);
  const batch = message.batchIndex < 0 ? "" : `:${message.batchIndex}`;
  const whole = message.payload !== null && !message.encrypted && !message.chunk;
  const found = message.payload === null ? undefined : decode(bytesOf(message.payload), whole ? schema : undefined);
  const extra = Object.entries(message.properties ?? {}).map(([key, value]) => `${key}=${value}`).join(", ");
  return (
    <article aria-label={`Message ${message.ledgerId}:${message.entryId}${batch}`}>
      <p>
        <code>{message.ledgerId}:{message.entryId}{batch}</code>
        {message.key != null && <> · key <code>{message.key}</code></>}
        {" · "}<span class="quiet">{time(message.publishTimeMs)} · {message.producer} · {found?.how}</span>
        {message.encrypted && <> · encrypted</>}
        {message.chunk && <> · chunk {message.chunk}</>}
        {extra && <> · {extra}</>}
      </p>
      {found ? <pre tabIndex={0}>{found.text}</pre> : <p class="problem">{message.unreadable}</p>}
    </article>
  );
}

function Publish({ name, root }: { name: TopicName; root: string }) {
  const [text, setText] = useState("");
  const [key, setKey] = useState("");
  const [version, setVersion] = useState("");
  const [done, setDone] = useState("");
  const [error, setError] = useState<Error>();
  const send = async (event: Event) => {
    event.preventDefault();
    setError(undefined);
    setDone("");
    try {
      const body = {
        payload: base64Of(new TextEncoder().encode(text)),
        ...(key ? { key } : {}),
        ...(version ? { schemaVersion: Number(version) } : {}),
      };
      const found = await ask<{ ledgerId: number; entryId: number }>(root, "POST", body);
      setDone(`Stored as ${found.ledgerId}:${found.entryId}.`);
    } catch (problem) {
      setError(problem as Error);
    }
  };
  return (
    <details>
      <summary>Publish a test message to {name.local}</summary>
      <form onSubmit={send}>
        <label>
          Text of the payload
          <textarea rows={4} value={text} onInput={(event) => setText(event.currentTarget.value)} />
        </label>
        <div class="row">
          <label>
            Key
            <input value={key} onInput={(event) => setKey(event.currentTarget.value)} />
          </label>
          <label>
            Version of the schema
            <input inputMode="numeric" pattern="\d*" value={version} onInput={(event) => setVersion(event.currentTarget.value)} />
          </label>
          <button type="submit">Publish</button>
        </div>
      </form>
      {error && <Problem error={error} />}
      <p role="status">{done}</p>
    </details>
  );
}
