// The page reads GET admin/live and shows each snapshot.

import { showDetails } from "./details.js";
import { byId, make, reconcile, setClass, setText } from "./dom.js";
import { showEnded } from "./ended.js";
import { showFlow } from "./flow.js";
import { count, short } from "./format.js";
import { showHealth } from "./health.js";
import { showPlots } from "./plots.js";
import { showRequests } from "./requests.js";
import { watch } from "./stream.js";
import { withStuck } from "./stuck.js";
import { showWorkers } from "./workers.js";

//: The snapshot that came while the page was hidden: drawn when the page is shown.
let unseen = null;

function show(told) {
  byId("login").hidden = true;
  document.querySelector("main").hidden = false;
  const snapshot = withStuck(told);
  unseen = document.hidden ? snapshot : null;
  if (unseen === null) draw(snapshot);
}

function draw(snapshot) {
  showHealth(snapshot);
  showRouters(snapshot);
  showFlow(snapshot);
  showWorkers(snapshot.workers);
  showPlots(snapshot);
  showRequests(snapshot);
  showEnded(snapshot);
  showDetails(snapshot);
}

// One router alone is not named; of several each is named, and a router that does not answer is marked.
function showRouters({ routers }) {
  byId("routers").hidden = routers.length < 2;
  reconcile(byId("routers"), routers, () => make("li"), (node, router) => {
    const said = router.error ? `no answer: ${router.error}` : `${count(router.num_requests)} live`;
    setText(node, `${short(router.id)}${router.is_this ? " (this one)" : ""}, ${said}`);
    node.title = router.url ?? "";
    setClass(node, router.error ? "bad" : "");
  });
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden || unseen === null) return;
  draw(unseen);
  unseen = null;
});
watch(show);
