// Tenants, namespaces, their topics and policies.
import { useState } from "preact/hooks";
import { ask, part } from "../api";
import { Action, Await, bytes, count, Problem, Table, useLoaded } from "../parts";
import { Rates } from "../plot";
import { Totals, useLive } from "./overview";
import { Policies } from "./policies";

export function Tenant({ tenant }: { tenant: string }) {
  const info = useLoaded(() => ask<{ adminRoles: string[]; allowedClusters: string[] }>(`/admin/v2/tenants/${part(tenant)}`), tenant);
  const namespaces = useLoaded(() => ask<string[]>(`/admin/v2/namespaces/${part(tenant)}`), tenant);
  return (
    <>
      <h1>Tenant {tenant}</h1>
      <Await from={info}>
        {(found) => <p>Admin roles: {found.adminRoles.join(", ") || "none"}. Clusters: {found.allowedClusters.join(", ")}.</p>}
      </Await>
      <h2>Namespaces</h2>
      <Await from={namespaces}>
        {(found) => (
          <ul>{found.map((one) => <li><a href={`#/namespace/${one}`}>{one}</a></li>)}</ul>
        )}
      </Await>
    </>
  );
}

interface TopicRow {
  loaded: boolean;
  owner: string | null;
  entries: number;
  size: number;
  producers: number | null;
  cursors: Record<string, number | null>;
}
interface Whole {
  broker: string;
  partitioned: Record<string, number>;
  topics: Record<string, TopicRow>;
}

function backlog(row: TopicRow): number | null {
  const known = Object.values(row.cursors).filter((one): one is number => one !== null);
  return known.length || !Object.keys(row.cursors).length ? known.reduce((sum, one) => sum + one, 0) : null;
}

export function Namespace({ tenant, namespace }: { tenant: string; namespace: string }) {
  const path = `${part(tenant)}/${part(namespace)}`;
  const [live, problem] = useLive(`/admin/quire/live/${path}`);
  const found = useLoaded(() => ask<Whole>(`/admin/quire/namespaces/${path}`), path, 30);
  const [filter, setFilter] = useState("");
  return (
    <>
      <h1>Namespace {tenant}/{namespace}</h1>
      {problem && <Problem error={new Error(problem)} />}
      {live && <Totals live={live} />}
      <Rates path={`/admin/quire/rates/${path}`} />
      <h2>Topics</h2>
      <Await from={found}>
        {(whole) => (
          <>
            <label>
              Filter by name
              <input type="search" value={filter} onInput={(event) => setFilter(event.currentTarget.value)} />
            </label>
            <Table
              title="Topics"
              rows={Object.entries(whole.topics).filter(([name]) => name.includes(filter)).sort()}
              none="No topics."
              columns={[
                { head: "Topic", cell: ([name]) => <a href={`#/topic/${path}/${part(name)}`}>{name}</a> },
                { head: "Broker", cell: ([, row]) => row.owner ?? "none" },
                { head: "Producers", number: true, cell: ([, row]) => count(row.producers) },
                { head: "Subscriptions", number: true, cell: ([, row]) => count(Object.keys(row.cursors).length) },
                { head: "Backlog", number: true, cell: ([, row]) => count(backlog(row)) },
                { head: "Entries", number: true, cell: ([, row]) => count(row.entries) },
                { head: "Size", number: true, cell: ([, row]) => bytes(row.size) },
              ]}
            />
            <p class="quiet">A dash: the topic is not open at this broker ({whole.broker}); its page asks its owner.</p>
            {Object.keys(whole.partitioned).length > 0 && (
              <>
                <h2>Partitioned topics</h2>
                <ul>
                  {Object.entries(whole.partitioned).map(([name, partitions]) => (
                    <li><a href={`#/topic/${path}/${part(name)}`}>{name}</a>: {partitions} partitions</li>
                  ))}
                </ul>
              </>
            )}
            <p class="buttons">
              <Action
                label="Unload"
                about="Clients reconnect at once. Nothing is lost."
                run={() => ask(`/admin/v2/namespaces/${path}/unload`, "PUT")}
                done={found.again}
              />
              <Action
                label="Clear the backlog"
                about="All messages of all subscriptions of this namespace count as consumed."
                name={`${tenant}/${namespace}`}
                run={() => ask(`/admin/v2/namespaces/${path}/clearBacklog`, "POST")}
                done={found.again}
              />
            </p>
          </>
        )}
      </Await>
      <Policies root={`/admin/v2/namespaces/${path}`} asked={`/admin/quire/policies/${path}`} own="namespace" name={`${tenant}/${namespace}`} />
    </>
  );
}
