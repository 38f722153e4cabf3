// The policies in force of a namespace or a topic, the level that sets each, and forms that change them.
import { useState } from "preact/hooks";
import { ask } from "../api";
import { Action, Await, Table, useLoaded } from "../parts";

type Level = "topic" | "namespace" | "broker";
interface Origin {
  value: unknown;
  from: Level;
  set: Record<string, unknown>;
}
interface Place {
  root: string;
  asked: string;
  own: Level;
  name: string;
}

const REMOVING = /^(retention|messageTTL|backlogQuota\?.*|inactiveTopicPolicies|subscriptionExpirationTime)$/;
const LABELS: Record<Level, string> = { topic: "this topic", namespace: "the namespace", broker: "the broker" };

export function Policies(place: Place) {
  const found = useLoaded(() => ask<{ policies: Record<string, Origin> }>(place.asked), place.asked, 60);
  const [all, setAll] = useState(false);
  return (
    <section>
      <h2>Policies</h2>
      <Await from={found}>
        {({ policies }) => (
          <>
            <label class="check">
              <input type="checkbox" checked={all} onChange={(event) => setAll(event.currentTarget.checked)} /> Also show those that
              the broker sets
            </label>
            <Table
              title="Policies"
              rows={Object.entries(policies).filter(([, one]) => all || one.from !== "broker").sort()}
              none="All policies are those of the broker."
              columns={[
                { head: "Policy", cell: ([policy]) => shown(policy) },
                { head: "Value in force", cell: ([, one]) => <code>{one.value === null ? "not limited" : JSON.stringify(one.value)}</code> },
                { head: "Set by", cell: ([, one]) => (one.from === place.own ? <strong>{LABELS[one.from]}</strong> : LABELS[one.from]) },
                {
                  head: "Actions",
                  cell: ([policy, one]) => (
                    <span class="buttons">
                      <Change place={place} policy={policy} origin={one} done={found.again} />
                      {place.own in one.set && (
                        <Action
                          label={`Inherit ${shown(policy)}`}
                          about={`The value of ${place.own === "topic" ? "the namespace or the broker" : "the broker"} is in force again.`}
                          name={REMOVING.test(policy) ? place.name : undefined}
                          run={() => ask(removal(place, policy), "DELETE")}
                          done={found.again}
                        />
                      )}
                    </span>
                  ),
                },
              ]}
            />
          </>
        )}
      </Await>
    </section>
  );
}

function Change({ place, policy, origin, done }: { place: Place; policy: string; origin: Origin; done: () => void }) {
  const [text, setText] = useState("");
  const removes = REMOVING.test(policy);
  const switched = policy === "dispatcherPauseOnAckStatePersistent";
  const store = () => {
    if (switched) return ask(`${place.root}/${policy}`, "POST");
    const value: unknown = JSON.parse(text);
    if (policy === "messageTTL" && place.own === "topic") return ask(`${place.root}/messageTTL?messageTTL=${Number(value)}`, "POST");
    return ask(`${place.root}/${policy}`, "POST", value);
  };
  return (
    <Action
      label={`${switched ? "Turn on" : "Change"} ${shown(policy)}`}
      about={removes ? "A smaller value removes messages or topics that are kept until now." : `It is in force at once for ${place.name}.`}
      name={removes ? place.name : undefined}
      opened={() => setText(JSON.stringify(origin.value, null, 2))}
      run={store}
      done={done}
    >
      {!switched && (
        <label>
          Value, as JSON
          <textarea rows={6} value={text} onInput={(event) => setText(event.currentTarget.value)} />
        </label>
      )}
    </Action>
  );
}

function shown(policy: string): string {
  return policy.replace("?backlogQuotaType=", " ");
}

function removal({ root, own }: Place, policy: string): string {
  return `${root}/${policy === "offloadPolicies" && own === "namespace" ? "removeOffloadPolicies" : policy}`;
}
