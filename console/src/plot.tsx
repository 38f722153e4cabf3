// The history of rates: two plots of a day, with the same numbers as text for those who cannot see them.
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { ask, Refused } from "./api";
import { Await, bytes, count, useLoaded } from "./parts";

interface History {
  endMs: number;
  stepS: number;
  messagesIn: (number | null)[];
  messagesOut: (number | null)[];
  bytesIn: (number | null)[];
  bytesOut: (number | null)[];
  backlog: (number | null)[];
}

export function Rates({ path }: { path: string }) {
  const history = useLoaded(
    () =>
      ask<History>(path).catch((error: Error) => {
        if (error instanceof Refused && error.status === 404) return null;
        throw error;
      }),
    path,
    60,
  );
  return (
    <Await from={history}>
      {(found) =>
        found === null || found.endMs < 0 ? (
          <p class="quiet">No history yet: it has a point for each minute with traffic at this broker.</p>
        ) : (
          <div class="plots">
            <Plot title="Messages a second" history={found} columns={["messagesIn", "messagesOut"]} shown={count} />
            <Plot title="Bytes a second" history={found} columns={["bytesIn", "bytesOut"]} shown={bytes} />
            <Plot title="Backlog, entries" history={found} columns={["backlog"]} shown={count} />
          </div>
        )
      }
    </Await>
  );
}

type Column = "messagesIn" | "messagesOut" | "bytesIn" | "bytesOut" | "backlog";
const LABELS: Record<Column, string> = {
  messagesIn: "in",
  bytesIn: "in",
  messagesOut: "out",
  bytesOut: "out",
  backlog: "backlog",
};

function Plot(props: { title: string; history: History; columns: Column[]; shown: (value: number) => string }) {
  const place = useRef<HTMLDivElement>(null);
  const { history, columns, shown } = props;
  const last = columns.map((one) => `${LABELS[one]} ${shown(history[one].at(-1) ?? 0)}`).join(", ");
  useEffect(() => {
    const target = place.current;
    if (!target) return;
    const style = getComputedStyle(document.documentElement);
    const color = (name: string) => style.getPropertyValue(name).trim();
    const axis = { stroke: color("--quiet"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line") } };
    // From the first sample on, but at least an hour: a broker that has just started shows more than one stroke.
    const all = history.messagesIn.length;
    const first = history.messagesIn.findIndex((one) => one !== null);
    const from = Math.max(0, Math.min(first < 0 ? all : first, all - 60));
    const times = Array.from({ length: all - from }, (_, at) => history.endMs / 1000 - (all - from - 1 - at) * history.stepS);
    const plot = new uPlot(
      {
        width: target.clientWidth || 300,
        height: 160,
        cursor: { y: false },
        legend: { show: false },
        scales: { y: { range: (_, __, max) => [0, Math.max(max * 1.1, 1)] } },
        axes: [axis, { ...axis, size: 70, values: (_, values) => values.map((one) => shown(one)) }],
        series: [
          {},
          ...columns.map((one, at) => ({
            label: LABELS[one],
            stroke: color(at ? "--second" : "--accent"),
            width: 2,
          })),
        ],
      },
      [times, ...columns.map((one) => history[one].slice(from))],
      target,
    );
    const watch = new ResizeObserver(() => plot.setSize({ width: target.clientWidth, height: 160 }));
    watch.observe(target);
    return () => {
      watch.disconnect();
      plot.destroy();
    };
  }, [history, props.title]);
  return (
    <figure>
      <figcaption>
        <strong>{props.title}</strong>
        {columns.map((one, at) => (
          <span class={at ? "key second" : "key"}>{LABELS[one]}</span>
        ))}
        <span class="quiet">now: {last}</span>
      </figcaption>
      <div ref={place} aria-hidden="true" />
    </figure>
  );
}
