// Bookies and brokers of the cluster.
import { ask, Refused } from "../api";
import { Action, Await, bytes, count, Table, time, useLoaded } from "../parts";

interface Broker {
  broker: string;
  usage: number;
  resource: string;
  bundles: number;
  topics: number;
  messagesPerSecond: number;
  bytesPerSecond: number;
  draining: boolean;
}
interface Balancing {
  broker: string;
  enabled: boolean;
  leader: { brokerId?: string; serviceUrl?: string } | null;
  brokers: Broker[];
  moves: { bundle: string; from: string; to: string; explanation: string }[];
  notes: string[];
  events: { atMs: number; kind: string; text: string }[];
}

export function Brokers() {
  const found = useLoaded(() => ask<Balancing>("/admin/quire/balancing"), "brokers", 10);
  return (
    <>
      <h1>Brokers</h1>
      <Await from={found}>
        {(all) => (
          <>
            <p>
              Load balancing is {all.enabled ? "on" : "off"}. Leader: {all.leader?.serviceUrl ?? "none"}. This console asks{" "}
              {all.broker}.
            </p>
            <Table
              title="Brokers"
              rows={all.brokers}
              none="No broker has published its load yet."
              columns={[
                { head: "Broker", cell: (one) => one.broker },
                { head: "Usage", cell: (one) => `${Math.round(one.usage * 100)} % of ${one.resource}` },
                { head: "Bundles", number: true, cell: (one) => count(one.bundles) },
                { head: "Topics", number: true, cell: (one) => count(one.topics) },
                { head: "Messages/s", number: true, cell: (one) => count(one.messagesPerSecond) },
                { head: "Bytes/s", number: true, cell: (one) => bytes(one.bytesPerSecond) },
                { head: "State", cell: (one) => (one.draining ? "draining" : "serving") },
              ]}
            />
            <h2>Moves that a round would make now</h2>
            <Table
              title="Moves"
              rows={all.moves}
              none={all.notes.join(" ") || "None: the load is balanced."}
              columns={[
                { head: "Bundle", cell: (one) => one.bundle },
                { head: "From", cell: (one) => one.from },
                { head: "To", cell: (one) => one.to },
                { head: "Why", cell: (one) => one.explanation },
              ]}
            />
            <h2>Last decisions of this broker</h2>
            <Table
              title="Decisions"
              rows={[...all.events].reverse()}
              none="None yet."
              columns={[
                { head: "Time", cell: (one) => time(one.atMs) },
                { head: "Kind", cell: (one) => one.kind },
                { head: "Text", cell: (one) => one.text },
              ]}
            />
          </>
        )}
      </Await>
    </>
  );
}

interface Cluster {
  auditorElected: boolean;
  auditorId: string;
  clusterUnderReplicated: boolean;
  ledgerReplicationEnabled: boolean;
  totalBookiesCount: number;
  writableBookiesCount: number;
  readonlyBookiesCount: number;
  unavailableBookiesCount: number;
}

// `list_bookie_info` has its numbers as text, as BookKeeper sends them.
function spaceOf(text: string): { free: number; total: number } | undefined {
  const found = /Free: (\d+), Total: (\d+)/.exec(text);
  return found ? { free: Number(found[1]), total: Number(found[2]) } : undefined;
}

async function bookies() {
  const list = (type: string) => ask<Record<string, string | null>>(`/api/v1/bookie/list_bookies?type=${type}&print_hostnames=true`);
  const [writable, readOnly, space, cluster] = await Promise.all([
    list("rw"),
    list("ro"),
    ask<Record<string, string>>("/api/v1/bookie/list_bookie_info"),
    ask<Cluster>("/api/v1/bookie/cluster_info"),
  ]);
  const rows = [
    ...Object.entries(writable).map(([id, address]) => ({ id, address, state: "writable", space: spaceOf(space[id] ?? "") })),
    ...Object.entries(readOnly).map(([id, address]) => ({ id, address, state: "read-only", space: spaceOf(space[id] ?? "") })),
  ];
  return { rows, cluster };
}

export function Bookies() {
  const found = useLoaded(bookies, "bookies", 15);
  if (found.error instanceof Refused && found.error.status === 404)
    return (
      <>
        <h1>Bookies</h1>
        <p>
          This broker does not serve the bookies' API. Ask the HTTP port of a bookie or of auto-recovery, or run{" "}
          <code>quire cluster status</code>. In <code>quire standalone</code> this page shows them.
        </p>
      </>
    );
  return (
    <>
      <h1>Bookies</h1>
      <Await from={found}>
        {({ rows, cluster }) => (
          <>
            <dl class="facts">
              <div><dt>writable</dt><dd>{cluster.writableBookiesCount}</dd></div>
              <div><dt>read-only</dt><dd>{cluster.readonlyBookiesCount}</dd></div>
              <div><dt>unavailable</dt><dd>{cluster.unavailableBookiesCount}</dd></div>
              <div><dt>replication</dt><dd>{cluster.clusterUnderReplicated ? "ledgers lack copies" : "complete"}</dd></div>
              <div><dt>auto-recovery</dt><dd>{cluster.ledgerReplicationEnabled ? "on" : "paused"}</dd></div>
              <div><dt>auditor</dt><dd>{cluster.auditorId || "none"}</dd></div>
            </dl>
            <Table
              title="Bookies"
              rows={rows}
              none="No bookie is registered."
              columns={[
                { head: "Bookie", cell: (one) => one.id },
                { head: "Address", cell: (one) => one.address ?? "–" },
                { head: "State", cell: (one) => one.state },
                {
                  head: "Fill",
                  cell: ({ id, space }) =>
                    space ? (
                      <>
                        <meter min={0} max={space.total} value={space.total - space.free} aria-label={`Fill of ${id}`} />{" "}
                        {Math.round((100 * (space.total - space.free)) / space.total)} % of {bytes(space.total)}
                      </>
                    ) : (
                      "no answer"
                    ),
                },
              ]}
            />
            <p class="buttons">
              {cluster.ledgerReplicationEnabled ? null : (
                <Action
                  label="Turn auto-recovery on"
                  about="Ledgers that lack copies are copied again."
                  run={() => ask("/api/v1/autorecovery/status", "PUT", { enabled: true })}
                  done={found.again}
                />
              )}
            </p>
          </>
        )}
      </Await>
      <UnderReplication />
    </>
  );
}

function UnderReplication() {
  const drains = useLoaded(() => ask<unknown>("/api/v1/quire/drains"), "drains", 15);
  const counts = useLoaded(() => ask<unknown>("/api/v1/quire/under-replication"), "under-replication", 15);
  return (
    <>
      <h2>Drains</h2>
      <Await from={drains}>{(found) => <pre tabIndex={0}>{JSON.stringify(found, null, 2)}</pre>}</Await>
      <h2>Under-replication</h2>
      <Await from={counts}>{(found) => <pre tabIndex={0}>{JSON.stringify(found, null, 2)}</pre>}</Await>
    </>
  );
}
