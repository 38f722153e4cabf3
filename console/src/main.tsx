// The frame of the console: navigation, the token, and the page of the address after `#`.
import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import "uplot/dist/uPlot.min.css";
import { ask, Refused, token } from "./api";
import "./console.css";
import { Problem } from "./parts";
import { Bookies, Brokers } from "./pages/cluster";
import { Namespace, Tenant } from "./pages/namespaces";
import { GoTo, Overview } from "./pages/overview";
import { Topic } from "./pages/topic";

function useAddress(): string[] {
  const read = () => location.hash.replace(/^#\//, "").split("/").map(decodeURIComponent);
  const [address, setAddress] = useState(read);
  useEffect(() => {
    const changed = () => {
      setAddress(read());
      document.getElementById("content")?.focus();
    };
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return address;
}

function Page({ address }: { address: string[] }) {
  const [kind, first = "", second = "", ...rest] = address;
  if (kind === "topic" && rest.length) return <Topic key={address.join("/")} name={{ tenant: first, namespace: second, local: rest.join("/") }} />;
  if (kind === "namespace" && second) return <Namespace key={address.join("/")} tenant={first} namespace={second} />;
  if (kind === "tenant" && first) return <Tenant key={first} tenant={first} />;
  if (kind === "brokers") return <Brokers />;
  if (kind === "bookies") return <Bookies />;
  return <Overview />;
}

function SignIn({ reason, done }: { reason: string; done: () => void }) {
  const [value, setValue] = useState("");
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault();
        token.set(value.trim());
        done();
      }}
    >
      <h1>Sign in</h1>
      <p>{reason}</p>
      <label>
        Token
        <input type="password" autocomplete="off" required value={value} onInput={(event) => setValue(event.currentTarget.value)} />
      </label>
      <p class="quiet">It stays in this tab, and has the rights of its role.</p>
      <button type="submit">Sign in</button>
    </form>
  );
}

const LINKS: [string, string][] = [
  ["", "Overview"],
  ["brokers", "Brokers"],
  ["bookies", "Bookies"],
];

function App() {
  const address = useAddress();
  const [turn, setTurn] = useState(0);
  const [state, setState] = useState<"asking" | "in" | "token" | "refused">("asking");
  const [error, setError] = useState<Error>();
  useEffect(() => {
    ask("/admin/v2/clusters").then(
      () => setState("in"),
      (problem: Error) => {
        setError(problem);
        setState(problem instanceof Refused && problem.status === 401 ? "token" : "refused");
      },
    );
  }, [turn]);
  const kind = address[0] ?? "";
  return (
    <>
      <a class="skip" href="#content" onClick={(event) => { event.preventDefault(); document.getElementById("content")?.focus(); }}>
        To the content
      </a>
      <header>
        <strong>Quire</strong>
        <nav aria-label="Pages">
          {LINKS.map(([path, label]) => (
            <a href={`#/${path}`} aria-current={path === kind || (!path && ["tenant", "namespace", "topic"].includes(kind)) ? "page" : undefined}>
              {label}
            </a>
          ))}
        </nav>
        {token.get() && (
          <button onClick={() => { token.set(""); setState("asking"); setTurn(turn + 1); }}>Sign out</button>
        )}
      </header>
      <main id="content" tabIndex={-1}>
        {state === "asking" && <p class="quiet">Loading …</p>}
        {state === "token" && <SignIn reason={token.get() ? error?.message ?? "" : "This broker asks for a token."} done={() => setTurn(turn + 1)} />}
        {state === "refused" && error && (
          <>
            <h1>The broker refuses</h1>
            <Problem error={error} />
            <GoTo />
          </>
        )}
        {state === "in" && <Page address={address} />}
      </main>
    </>
  );
}

const root = document.getElementById("app");
if (root) render(<App />, root);
