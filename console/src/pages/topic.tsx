// One topic: partitions, subscriptions, consumers, ledgers; its actions.
import { ask, topicPath, type TopicName } from "../api";
import { Action, Await, bytes, count, Problem, Table, time, useLoaded } from "../parts";
import { Rates } from "../plot";
import { Messages } from "./messages";
import { Policies } from "./policies";

interface Consumer {
  consumerName: string;
  address: string;
  clientVersion: string;
  msgRateOut: number;
  availablePermits: number;
  unackedMessages: number;
}
interface Subscription {
  type: string;
  msgBacklog: number;
  backlogSize?: number;
  msgRateOut?: number;
  unackedMessages: number;
  isDurable?: boolean;
  consumers?: Consumer[];
}
interface Publisher {
  producerName: string;
  address: string;
  clientVersion: string;
  msgRateIn: number;
  msgThroughputIn: number;
}
interface Stats {
  msgRateIn: number;
  msgThroughputIn: number;
  msgRateOut: number;
  msgThroughputOut: number;
  storageSize: number;
  backlogSize: number;
  ownerBroker?: string;
  publishers: Publisher[];
  subscriptions: Record<string, Subscription>;
  partitions?: Record<string, Stats>;
}
interface Ledger {
  ledgerId: number;
  entries: number;
  size: number;
  offloaded: boolean;
  timestamp: number;
  metadata?: string;
}

const local = (name: string) => name.slice(name.lastIndexOf("/") + 1);

export function Topic({ name }: { name: TopicName }) {
  const path = topicPath(name);
  const root = `/admin/v2/${path}`;
  const partitions = useLoaded(() => ask<{ partitions: number }>(`${root}/partitions`), path);
  return (
    <>
      <h1>
        <a href={`#/namespace/${name.tenant}/${name.namespace}`}>{name.tenant}/{name.namespace}</a>/{name.local}
      </h1>
      <Await from={partitions}>
        {({ partitions }) => (partitions ? <Partitioned name={name} root={root} /> : <Plain name={name} root={root} />)}
      </Await>
      {partitions.value && (
        <>
          <Policies root={root} asked={`/admin/quire/policies/${path}`} own="topic" name={name.local} />
          <DeleteTopic name={name} path={partitions.value.partitions ? `${root}/partitions` : root} />
        </>
      )}
    </>
  );
}

function Facts({ stats }: { stats: Stats }) {
  return (
    <dl class="facts">
      <div><dt>messages in</dt><dd>{count(stats.msgRateIn)}/s</dd></div>
      <div><dt>messages out</dt><dd>{count(stats.msgRateOut)}/s</dd></div>
      <div><dt>bytes in</dt><dd>{bytes(stats.msgThroughputIn)}/s</dd></div>
      <div><dt>bytes out</dt><dd>{bytes(stats.msgThroughputOut)}/s</dd></div>
      <div><dt>stored</dt><dd>{bytes(stats.storageSize)}</dd></div>
      <div><dt>backlog</dt><dd>{bytes(stats.backlogSize)}</dd></div>
      {stats.ownerBroker && <div><dt>broker</dt><dd>{stats.ownerBroker}</dd></div>}
    </dl>
  );
}

function Partitioned({ name, root }: { name: TopicName; root: string }) {
  const stats = useLoaded(() => ask<Stats>(`${root}/partitioned-stats`), root, 5);
  const link = (full: string) => `#/topic/${name.tenant}/${name.namespace}/${encodeURIComponent(local(full))}`;
  return (
    <Await from={stats}>
      {(found) => (
        <>
          <Facts stats={found} />
          <h2>Partitions</h2>
          <Table
            title="Partitions"
            rows={Object.entries(found.partitions ?? {})}
            none="No partition is in use yet."
            columns={[
              { head: "Partition", cell: ([full]) => <a href={link(full)}>{local(full)}</a> },
              { head: "Broker", cell: ([, one]) => one.ownerBroker ?? "none" },
              { head: "Messages in/s", number: true, cell: ([, one]) => count(one.msgRateIn) },
              { head: "Messages out/s", number: true, cell: ([, one]) => count(one.msgRateOut) },
              { head: "Stored", number: true, cell: ([, one]) => bytes(one.storageSize) },
              { head: "Backlog", number: true, cell: ([, one]) => bytes(one.backlogSize) },
            ]}
          />
          <Subscriptions root={root} stats={found} again={stats.again} />
        </>
      )}
    </Await>
  );
}

function Plain({ name, root }: { name: TopicName; root: string }) {
  const stats = useLoaded(() => ask<Stats>(`${root}/stats`), root, 5);
  return (
    <>
      <Await from={stats}>
        {(found) => (
          <>
            <Facts stats={found} />
            <Rates path={`/admin/quire/rates/${topicPath(name)}`} />
            <Subscriptions root={root} stats={found} again={stats.again} />
            <Consumers stats={found} />
            <h2>Producers</h2>
            <Table
              title="Producers"
              rows={found.publishers}
              none="No producer is connected."
              columns={[
                { head: "Name", cell: (one) => one.producerName },
                { head: "Address", cell: (one) => one.address },
                { head: "Client", cell: (one) => one.clientVersion },
                { head: "Messages/s", number: true, cell: (one) => count(one.msgRateIn) },
                { head: "Bytes/s", number: true, cell: (one) => bytes(one.msgThroughputIn) },
              ]}
            />
          </>
        )}
      </Await>
      <Ledgers root={root} />
      <Messages name={name} />
    </>
  );
}

function Subscriptions({ root, stats, again }: { root: string; stats: Stats; again: () => void }) {
  return (
    <>
      <h2>Subscriptions</h2>
      <Table
        title="Subscriptions"
        rows={Object.entries(stats.subscriptions).sort()}
        none="No subscriptions: messages are kept by the retention of the namespace only."
        columns={[
          { head: "Name", cell: ([one]) => one },
          { head: "Type", cell: ([, one]) => one.type },
          { head: "Backlog", number: true, cell: ([, one]) => count(one.msgBacklog) },
          { head: "Bytes", number: true, cell: ([, one]) => bytes(one.backlogSize) },
          { head: "Messages out/s", number: true, cell: ([, one]) => count(one.msgRateOut) },
          { head: "Unacknowledged", number: true, cell: ([, one]) => count(one.unackedMessages) },
          { head: "Consumers", number: true, cell: ([, one]) => count(one.consumers?.length) },
          {
            head: "Actions",
            cell: ([one]) => {
              const path = `${root}/subscription/${encodeURIComponent(one)}`;
              return (
                <span class="buttons">
                  <Action label={`Skip all of ${one}`} about="Its whole backlog counts as consumed." name={one} run={() => ask(`${path}/skip_all`, "POST")} done={again} />
                  <Action label={`Delete ${one}`} about="The subscription and its position are deleted." name={one} run={() => ask(path, "DELETE")} done={again} />
                </span>
              );
            },
          },
        ]}
      />
    </>
  );
}

function Consumers({ stats }: { stats: Stats }) {
  const rows = Object.entries(stats.subscriptions).flatMap(([name, one]) => (one.consumers ?? []).map((each) => ({ name, each })));
  return (
    <>
      <h2>Consumers</h2>
      <Table
        title="Consumers"
        rows={rows}
        none="No consumer is connected."
        columns={[
          { head: "Subscription", cell: ({ name }) => name },
          { head: "Name", cell: ({ each }) => each.consumerName },
          { head: "Address", cell: ({ each }) => each.address },
          { head: "Client", cell: ({ each }) => each.clientVersion },
          { head: "Messages/s", number: true, cell: ({ each }) => count(each.msgRateOut) },
          { head: "Permits", number: true, cell: ({ each }) => count(each.availablePermits) },
          { head: "Unacknowledged", number: true, cell: ({ each }) => count(each.unackedMessages) },
        ]}
      />
    </>
  );
}

function Ledgers({ root }: { root: string }) {
  const found = useLoaded(() => ask<{ ledgers: Ledger[] }>(`${root}/internalStats?metadata=true`), `ledgers ${root}`, 30);
  return (
    <>
      <h2>Ledgers</h2>
      <Await from={found}>
        {({ ledgers }) => (
          <>
            <Table
              title="Ledgers"
              rows={[...ledgers].reverse()}
              none="No ledgers."
              columns={[
                { head: "Ledger", number: true, cell: (one) => one.ledgerId },
                { head: "Entries", number: true, cell: (one) => count(one.entries) },
                { head: "Size", number: true, cell: (one) => bytes(one.size) },
                { head: "Closed", cell: (one) => (one.timestamp ? time(one.timestamp) : "open") },
                { head: "Tier", cell: (one) => (one.offloaded ? "object store" : "bookies") },
                {
                  head: "Bookies and quorums",
                  cell: (one) => one.metadata ? <details><summary>Show</summary><pre tabIndex={0}>{one.metadata}</pre></details> : "–",
                },
              ]}
            />
            <Offload root={root} ledgers={ledgers} again={found.again} />
          </>
        )}
      </Await>
    </>
  );
}

function Offload({ root, ledgers, again }: { root: string; ledgers: Ledger[]; again: () => void }) {
  const found = useLoaded(() => ask<{ status: string; lastError: string }>(`${root}/offload`), `offload ${root}`, 30);
  const moved = ledgers.filter((one) => one.offloaded);
  const size = (of: Ledger[]) => of.reduce((sum, one) => sum + one.size, 0);
  const last = ledgers.at(-1);
  return (
    <>
      <h2>Offload</h2>
      <dl class="facts">
        <div><dt>state</dt><dd>{found.value?.status ?? "–"}</dd></div>
        <div><dt>ledgers in the object store</dt><dd>{moved.length} of {ledgers.length}</dd></div>
        <div><dt>bytes there</dt><dd>{bytes(size(moved))} of {bytes(size(ledgers))}</dd></div>
      </dl>
      {found.error && <Problem error={found.error} />}
      {found.value?.lastError && <p class="problem">The last attempt failed: {found.value.lastError}</p>}
      {last && (
        <p class="buttons">
          <Action
            label="Offload all closed ledgers"
            about="The broker copies them to the object store of the topic's offload policies, in the background."
            run={() => ask(`${root}/offload`, "PUT", { ledgerId: last.ledgerId, entryId: 0 })}
            done={() => { found.again(); again(); }}
          />
        </p>
      )}
    </>
  );
}

function DeleteTopic({ name, path }: { name: TopicName; path: string }) {
  return (
    <p class="buttons">
      <Action
        label="Delete the topic"
        about="The topic is deleted with its messages and subscriptions. It must have no clients."
        name={name.local}
        run={() => ask(path, "DELETE")}
        done={() => (location.hash = `#/namespace/${name.tenant}/${name.namespace}`)}
      />
    </p>
  );
}
