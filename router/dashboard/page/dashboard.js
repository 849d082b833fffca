// The page reads GET admin/live and shows each snapshot.

import { byId, count, duration, make, rate, reconcile, setText, short } from "./dom.js";
import { showFlow } from "./flow.js";
import { showPlots } from "./plots.js";
import { showRequests } from "./requests.js";
import { watch } from "./stream.js";
import { showWorkers } from "./workers.js";

// The newest value that is not older than a few steps: an older one says nothing of now.
const last = (values, steps = 5) => values.slice(-steps).findLast((value) => value !== null) ?? null;

function show(snapshot) {
  byId("login").hidden = true;
  document.querySelector("main").hidden = false;
  document.body.classList.remove("stale");
  showNumbers(snapshot);
  showRouters(snapshot);
  showFlow(snapshot);
  showWorkers(snapshot.workers);
  showPlots(snapshot.history);
  showRequests(snapshot);
}

function showNumbers({ counts, history }) {
  const live = Object.values(counts).reduce((sum, value) => sum + value, 0);
  const failed = last(history.failed_per_s, 1);
  const numbers = [
    { id: "live requests", value: count(live) },
    { id: "requests/s", value: rate(last(history.requests_per_s, 1)) },
    { id: "failed/s", value: rate(failed), bad: failed > 0 },
    { id: "tokens/s", value: rate(last(history.tokens_per_s, 1)) },
    { id: "TTFT p50", value: duration(last(history.ttft.p50_ms)) },
    { id: "TTFT p95", value: duration(last(history.ttft.p95_ms)) },
    { id: "ITL p50", value: duration(last(history.itl.p50_ms)) },
  ];
  const build = ({ id }) => {
    const node = make("div");
    node.append(make("dt", "", id), make("dd"));
    return node;
  };
  reconcile(byId("numbers"), numbers, build, (node, { value, bad }) => {
    setText(node.lastChild, value);
    node.classList.toggle("bad", Boolean(bad));
  });
}

// One router has nothing to tell of others; of several each is named, and who does not answer is in red.
function showRouters({ routers }) {
  byId("routers").hidden = routers.length < 2;
  reconcile(byId("routers"), routers, () => make("li"), (node, router) => {
    const said = router.error ? `no answer: ${router.error}` : `${count(router.num_requests)} live`;
    setText(node, `${short(router.id)}${router.is_this ? " (this one)" : ""}, ${said}`);
    node.title = router.url;
    node.className = router.error ? "bad" : "";
  });
}

watch(show);
