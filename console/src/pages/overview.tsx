// All topics that this broker serves, by namespace, with their present rates; and the history of the broker.
import { useEffect, useState } from "preact/hooks";
import { ask, follow, part } from "../api";
import { Await, bytes, count, Problem, Table, useLoaded } from "../parts";
import { Rates } from "../plot";

type Values = [number, number, number, number, number];
export interface Live {
  total: Values;
  namespaces: Record<string, Values>;
  topics: Record<string, Values>;
  loaded: number;
}

export function useLive(path: string): [Live | undefined, string] {
  const [event, setEvent] = useState<Live>();
  const [problem, setProblem] = useState("");
  useEffect(() => {
    setEvent(undefined);
    return follow<Live>(path, setEvent, setProblem);
  }, [path]);
  return [event, problem];
}

export function topicLink(name: string) {
  const [tenant = "", namespace = "", ...rest] = name.replace("persistent://", "").split("/");
  const local = rest.join("/");
  return <a href={`#/topic/${part(tenant)}/${part(namespace)}/${part(local)}`}>{local}</a>;
}

export function Totals({ live }: { live: Live }) {
  const [messagesIn, bytesIn, messagesOut, bytesOut, backlog] = live.total;
  return (
    <dl class="facts">
      <div><dt>open topics</dt><dd>{count(live.loaded)}</dd></div>
      <div><dt>messages in</dt><dd>{count(messagesIn)}/s</dd></div>
      <div><dt>messages out</dt><dd>{count(messagesOut)}/s</dd></div>
      <div><dt>bytes in</dt><dd>{bytes(bytesIn)}/s</dd></div>
      <div><dt>bytes out</dt><dd>{bytes(bytesOut)}/s</dd></div>
      <div><dt>backlog, entries</dt><dd>{count(backlog)}</dd></div>
    </dl>
  );
}

export function Overview() {
  const [live, problem] = useLive("/admin/quire/live");
  const tenants = useLoaded(() => ask<string[]>("/admin/v2/tenants"), "tenants");
  return (
    <>
      <h1>Overview of this broker</h1>
      {problem && <Problem error={new Error(problem)} />}
      {live && <Totals live={live} />}
      <Rates path="/admin/quire/rates" />
      {live && Object.keys(live.namespaces).sort().map((namespace) => (
        <section>
          <h2><a href={`#/namespace/${namespace}`}>{namespace}</a></h2>
          <TopicRates live={live} namespace={namespace} />
        </section>
      ))}
      {live && !live.loaded && <p class="quiet">No topic is open at this broker. A client or a request opens one.</p>}
      <h2>Tenants</h2>
      <Await from={tenants}>
        {(found) => (
          <ul>{found.map((one) => <li><a href={`#/tenant/${part(one)}`}>{one}</a></li>)}</ul>
        )}
      </Await>
      <GoTo />
    </>
  );
}

export function TopicRates({ live, namespace }: { live: Live; namespace: string }) {
  const rows = Object.entries(live.topics).filter(([name]) => name.startsWith(`persistent://${namespace}/`)).sort();
  return (
    <Table
      title={`Topics of ${namespace}`}
      rows={rows}
      none="Topics of other brokers, or without traffic, are listed in the namespace."
      columns={[
        { head: "Topic", cell: ([name]) => topicLink(name) },
        { head: "Messages in/s", number: true, cell: ([, values]) => count(values[0]) },
        { head: "Bytes in/s", number: true, cell: ([, values]) => bytes(values[1]) },
        { head: "Messages out/s", number: true, cell: ([, values]) => count(values[2]) },
        { head: "Bytes out/s", number: true, cell: ([, values]) => bytes(values[3]) },
        { head: "Backlog", number: true, cell: ([, values]) => count(values[4]) },
      ]}
    />
  );
}

// For roles that may not list tenants: they know the name of their namespace.
export function GoTo() {
  const [name, setName] = useState("");
  return (
    <form
      class="row"
      onSubmit={(event) => {
        event.preventDefault();
        location.hash = `#/namespace/${name}`;
      }}
    >
      <label>
        Go to a namespace
        <input placeholder="tenant/namespace" pattern="[^/]+/[^/]+" required value={name} onInput={(event) => setName(event.currentTarget.value)} />
      </label>
      <button type="submit">Open</button>
    </form>
  );
}
