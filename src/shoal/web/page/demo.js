// The page of shoal demo: acks=1 and acks=all side by side, one button, and what followed.

import { html, useEffect, useState } from "./vendor.js";
import { getJson, postJson } from "./api.js";
import { formatCount, formatRate, plural } from "./format.js";
import { Problem, Sparkline, Verdict } from "./parts.js";
import { buildAddress } from "./router.js";

const ASK_EVERY_MS = 400;

export function Demo() {
  const { demo, problem, isConnected } = useDemo();
  if (!demo) return html`<main><h1>Shoal demo</h1>${problem ? html`<${Problem} text=${problem} />` : html`<p class="quiet">Loading…</p>`}</main>`;
  return html`<main>
    <h1>What acks=1 costs when a leader dies</h1>
    ${isConnected ? null : html`<p class="quiet" role="status">The demo has ended. What it found stays in the folder of runs; <code>shoal serve</code> shows it again.</p>`}
    <p>Two clusters, the same settings: 3 brokers, 3 replicas, <code>min.insync.replicas=2</code>, no unclean elections (Kafka's default). Only the producers differ: one is acknowledged by the leader alone, the other by all replicas in sync.</p>
    <${PressButton} demo=${demo} />
    <div class="acks-sides">${demo.sides.map((side) => html`<${DemoSide} key=${side.acks} side=${side} />`)}</div>
    <section aria-labelledby="steps"><h2 id="steps">And mirrors</h2>
      <ol class="steps">${demo.steps.map((step) => html`<${Step} key=${step.title} step=${step} />`)}</ol></section>
    <p><a href="#/">All runs</a></p>
  </main>`;
}

// Asks while the page is visible. A demo that has ended keeps its last state here.
function useDemo() {
  const [state, setState] = useState({ demo: null, problem: "", isConnected: true });
  useEffect(() => {
    let timer = null;
    let isGone = false;
    const ask = async () => {
      try {
        const demo = document.hidden ? undefined : await getJson("demo");
        if (demo === null) setState({ demo: null, problem: "This is not the page of shoal demo.", isConnected: true });
        else if (demo) setState({ demo, problem: "", isConnected: true });
      } catch (error) {
        setState((old) => ({ ...old, problem: error.message, isConnected: false }));
      }
      if (!isGone) timer = setTimeout(ask, ASK_EVERY_MS);
    };
    ask();
    return () => { isGone = true; clearTimeout(timer); };
  }, []);
  return state;
}

const STEPS = {
  waiting: "",
  cutting: "Cutting the followers off…",
  cut: "The followers are cut off; the leaders still acknowledge.",
  killing: "Killing the leaders…",
  killed: "The leaders are dead; a follower of each took over.",
  over: "The leaders are dead; a follower of each took over.",
};

function PressButton({ demo }) {
  const [problem, setProblem] = useState("");
  const press = () => postJson("demo/press", {}).then(() => setProblem(""), (error) => setProblem(error.message));
  const isReady = demo.presses_in_s !== null;
  const step = STEPS[demo.sides[0].step] || "";
  return html`<div class="press">
    ${demo.is_pressed ? null : html`<button type="button" class="press-now" disabled=${!isReady} onClick=${press}>Cut off the followers, kill the leader</button>`}
    <span class="quiet" role="status">${demo.is_pressed ? step : isReady ? `It presses itself in ${Math.ceil(demo.presses_in_s)} s.` : "Starting producers and consumers…"}</span>
    ${problem ? html`<${Problem} text=${problem} />` : null}
  </div>`;
}

function DemoSide({ side }) {
  const isHit = ["killed", "over"].includes(side.step);
  const tone = side.verdict ? (side.verdict === "proven" ? "good" : "bad") : side.lost ? "bad" : "";
  const rate = side.rates[side.rates.length - 1];
  return html`<section class=${`acks-side ${tone}`} aria-labelledby=${`acks-${side.acks}`}>
    <h2 id=${`acks-${side.acks}`}>acks=${side.acks}</h2>
    <p class="quiet">${side.acks === "1" ? "The leader answers at once, before a follower has the message. (Kafka then allows no idempotence.)" : "The leader answers when all replicas in sync have the message."}</p>
    <dl>${[["sent", side.sent], ["acknowledged", side.acknowledged], ["received", side.received]].map(([name, value]) => html`<div><dt>${name}</dt><dd>${formatCount(value)}</dd></div>`)}
      <div><dt>acknowledged now</dt><dd>${side.is_sent ? "–" : formatRate(rate)}</dd></div></dl>
    <${Sparkline} values=${side.rates} label=${`acknowledged per second, acks=${side.acks}`} />
    <${DemoBrokers} step=${side.step} />
    <p class="count" role="status">${describeLosses(side, isHit)}</p>
    ${side.examples.length ? html`<ul class="findings">${side.examples.map((name) => html`<li><a href=${buildAddress("life", side.run, name)}>The life of message ${formatCount(name.sequence)}</a></li>`)}</ul>` : null}
    ${side.verdict ? html`<p class="sentence"><${Verdict} word=${side.verdict} /> ${side.sentence}</p>` : null}
    <p><a href=${buildAddress("run", side.run)}>${side.verdict ? "The whole run" : "This run"}</a></p>
  </section>`;
}

function describeLosses(side, isHit) {
  if (side.lost) return html`<b class="lost">${formatCount(side.lost)}</b> acknowledged messages are lost`;
  if (!isHit) return html`<b>0</b> lost`;
  return side.verdict || side.is_sent ? html`<b class="kept">0</b> lost` : html`<b>0</b> lost so far`;
}

// Leader and followers, and whether anything passes between them. Broker numbers do not matter here.
function DemoBrokers({ step }) {
  const isCut = ["cut", "killing"].includes(step);
  const isDead = ["killed", "over"].includes(step);
  const label = isDead ? "The leader is dead; a follower leads" : isCut ? "The leader is cut off from both followers" : "The leader and two followers";
  const box = (x, text, kind) => html`<rect class=${`broker ${kind}`} x=${x} y="6" width="92" height="34" rx="6" /><text x=${x + 46} y="28" text-anchor="middle">${text}</text>`;
  const link = (x, isBroken) => html`<line class=${isBroken ? "link broken" : "link"} x1=${x} x2=${x + 40} y1="23" y2="23" />${isBroken ? html`<path class="scissors" d="M ${x + 14} 15 l 12 16 m 0 -16 l -12 16" />` : null}`;
  return html`<svg class="brokers" viewBox="0 0 360 46" role="img" aria-label=${label}>
    ${link(93, isCut || isDead)}${link(225, false)}
    ${box(1, isDead ? "dead" : "leader", isDead ? "dead" : "leads")}
    ${box(133, isDead ? "new leader" : "follower", isDead ? "leads" : "")}
    ${box(265, "follower", "")}
    ${isCut ? html`<path class="arc broken" d="M 47 6 c 40 -12 220 -12 264 0" />` : null}
  </svg>`;
}

function Step({ step }) {
  const counts = step.sent ? `${plural(step.sent, "message")} sent, ${formatCount(step.received)} received` : "";
  return html`<li><h3>${step.title}</h3>
    ${step.verdict ? html`<p class="sentence"><${Verdict} word=${step.verdict} /> ${step.sentence} <a href=${buildAddress("run", step.run)}>The whole run</a></p>` : html`<p class="quiet">${step.doing || "comes next"}${counts ? `: ${counts}` : ""}</p>`}</li>`;
}
