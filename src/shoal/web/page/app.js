// The page: chooses a place by the address. In a report, which has its data in it, shows that.

import { html, render, useEffect, useState } from "./vendor.js";
import { Cluster } from "./cluster.js";
import { Compare } from "./compare.js";
import { Demo } from "./demo.js";
import { Home } from "./home.js";
import { Life } from "./life.js";
import { Mirror } from "./mirror.js";
import { Guarded } from "./parts.js";
import { Report, readReport } from "./report.js";
import { parseAddress } from "./router.js";
import { Run } from "./run.js";
import { Stories } from "./stories.js";
import { Sweep } from "./sweep.js";

const PLACES = { home: Home, cluster: Cluster, compare: Compare, demo: Demo, life: Life, mirror: Mirror, run: Run, stories: Stories, sweep: Sweep };

function App() {
  const [address, setAddress] = useState(parseAddress(location.hash));
  useEffect(() => {
    const follow = () => setAddress(parseAddress(location.hash));
    window.addEventListener("hashchange", follow);
    return () => window.removeEventListener("hashchange", follow);
  }, []);
  const Place = Object.hasOwn(PLACES, address.place) ? PLACES[address.place] : null;
  useEffect(() => { document.title = address.name ? `${address.name} – Shoal` : "Shoal"; }, [address.place, address.name]);
  return Place ? html`<${Guarded} key=${address.place + address.name} name=${address.name}><${Place} address=${address} /><//>` : html`<main><h1>No such page</h1><p><a href="#/">All runs</a></p></main>`;
}

const report = readReport();
render(report ? html`<${Guarded}><${Report} content=${report} /><//>` : html`<${App} />`, document.getElementById("app"));
