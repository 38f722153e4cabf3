// What all pages use: loading, tables, numbers, actions that ask for a name.
import type { ComponentChildren } from "preact";
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { Refused } from "./api";

export interface Loaded<T> {
  value?: T;
  error?: Refused | Error;
  again: () => void;
}

// Loads at once, every `every_s` seconds, and when `again` is called. A failed repetition keeps the value.
export function useLoaded<T>(load: () => Promise<T>, key: string, every_s = 0): Loaded<T> {
  const [found, setFound] = useState<{ key: string; value?: T; error?: Error }>({ key });
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    let gone = false;
    const once = () =>
      load().then(
        (value) => gone || setFound({ key, value }),
        (error: Error) => gone || setFound((before) => ({ ...(before.key === key ? before : {}), key, error })),
      );
    void once();
    const timer = every_s ? setInterval(() => document.hidden || void once(), every_s * 1000) : undefined;
    return () => {
      gone = true;
      clearInterval(timer);
    };
  }, [key, turn, every_s]);
  const again = useCallback(() => setTurn((before) => before + 1), []);
  return found.key === key ? { value: found.value, error: found.error, again } : { again };
}

export function Problem({ error }: { error: Error }) {
  return (
    <p class="problem" role="alert">
      {error.message}
    </p>
  );
}

export function Await<T>({ from, children }: { from: Loaded<T>; children: (value: T) => ComponentChildren }) {
  if (from.value === undefined) return from.error ? <Problem error={from.error} /> : <p class="quiet">Loading …</p>;
  return (
    <>
      {from.error && <Problem error={from.error} />}
      {children(from.value)}
    </>
  );
}

export interface Column<T> {
  head: string;
  cell: (row: T) => ComponentChildren;
  number?: boolean;
}

const ROWS = 200;

export function Table<T>({ title, rows, columns, none }: { title: string; rows: T[]; columns: Column<T>[]; none: string }) {
  const [shown, setShown] = useState(ROWS);
  if (!rows.length) return <p class="quiet">{none}</p>;
  return (
    <div class="table" role="region" aria-label={title} tabIndex={0}>
      <table>
        <caption class="hidden">{title}</caption>
        <thead>
          <tr>
            {columns.map((one) => (
              <th scope="col" class={one.number ? "number" : ""}>
                {one.head}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.slice(0, shown).map((row) => (
            <tr>
              {columns.map((one) => (
                <td class={one.number ? "number" : ""}>{one.cell(row)}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
      {rows.length > shown && (
        <button onClick={() => setShown(shown + ROWS)}>Show more ({rows.length - shown} left)</button>
      )}
    </div>
  );
}

export function count(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  return value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 1 : 0 });
}

export function bytes(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (value >= 1024 && at < units.length - 1) {
    value /= 1024;
    at++;
  }
  return `${value.toLocaleString("en", { maximumFractionDigits: value < 10 && at ? 1 : 0 })} ${units[at]}`;
}

export function time(ms: number): string {
  return ms ? new Date(ms).toLocaleString() : "–";
}

interface ActionProps {
  label: string;
  about: string;
  name?: string;
  run: () => Promise<unknown>;
  done: () => void;
  opened?: () => void;
  children?: ComponentChildren;
}

// A button of a change. With `name` it asks for the name of what it destroys before it begins; `children`: more fields.
export function Action(props: ActionProps) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [typed, setTyped] = useState("");
  const [error, setError] = useState<Error>();
  const [busy, setBusy] = useState(false);
  const go = async (event: Event) => {
    event.preventDefault();
    if (props.name !== undefined && typed !== props.name) return;
    setBusy(true);
    setError(undefined);
    try {
      await props.run();
      dialog.current?.close();
      props.done();
    } catch (found) {
      setError(found as Error);
    } finally {
      setBusy(false);
    }
  };
  const open = () => {
    setTyped("");
    setError(undefined);
    props.opened?.();
    dialog.current?.showModal();
  };
  return (
    <>
      <button class={props.name === undefined ? "" : "danger"} onClick={open}>
        {props.label}
      </button>
      <dialog ref={dialog} aria-label={props.label}>
        <form onSubmit={go}>
          <h2>{props.label}</h2>
          <p>{props.about}</p>
          {props.children}
          {props.name !== undefined && (
            <label>
              Type <code>{props.name}</code> to go on
              <input value={typed} autocomplete="off" onInput={(event) => setTyped(event.currentTarget.value)} />
            </label>
          )}
          {error && <Problem error={error} />}
          <p class="buttons">
            <button type="submit" class={props.name === undefined ? "" : "danger"} disabled={busy || (props.name !== undefined && typed !== props.name)}>
              {props.label}
            </button>
            <button type="button" onClick={() => dialog.current?.close()}>
              Cancel
            </button>
          </p>
        </form>
      </dialog>
    </>
  );
}
