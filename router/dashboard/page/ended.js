// The requests that ended last: how, and why.

import { byId, make, reconcile, setClass, setText } from "./dom.js";
import { clock, count, duration } from "./format.js";
import { canShow } from "./jump.js";
import { cells, idButton, newRow, showWay } from "./requests.js";
import { shorter } from "./shorter.js";

const NUM_SHOWN = 10;
const look = shorter("ended", "more-ended", NUM_SHOWN);
const choices = [...document.querySelectorAll("#outcomes input")];
let newest = null;

export function showEnded(snapshot) {
  newest = snapshot;
  const wanted = choices.find((choice) => choice.checked).value;
  const all = snapshot.ended;
  for (const choice of choices) {
    const some = choice.value ? all.filter(({ outcome }) => outcome === choice.value) : all;
    setText(choice.nextElementSibling, `${choice.dataset.say} ${count(some.length)}`);
  }
  const shown = wanted ? all.filter(({ outcome }) => outcome === wanted) : all;
  reconcile(byId("ended"), shown, build, update);
  look(shown);
  byId("over").classList.toggle("some", shown.length > 0);
  byId("no-ended").hidden = shown.length > 0;
  setText(byId("no-ended"), {
    "": "No request has ended since the router began.",
    failed: "No request has failed. What fails is listed here with its error.",
    aborted: "No request was aborted, by an operator, a deadline or a client that left.",
    done: "No request is done yet.",
  }[wanted]);
}

function build(request) {
  const row = newRow(request.id);
  const time = make("time", "", clock(request.ended_at));
  time.dateTime = new Date(request.ended_at * 1000).toISOString();
  time.title = time.dateTime;
  cells(row, ["when", time], ["request", idButton(request.id, "request")], ["outcome"], ["why", make("b"), " ", make("span")],
    ["age number"], ["way", make("span"), " → ", make("span")]);
  return row;
}

function update(row, request) {
  const [, , outcome, why, took, way] = row.children;
  setClass(row, request.outcome);
  setText(outcome, request.outcome);
  const [code, text] = whyOf(request);
  setText(why.firstChild, code);
  setText(why.lastChild, text);
  setText(took, duration(request.total_ms));
  showWay(way, request);
}

// What became of it: the code of its error, and a sentence.
export function whyOf({ outcome, code, error, ended_in: state, num_tokens: tokens, ttft_ms: ttft }) {
  if (outcome !== "done") return [code ?? "", `${error ?? ""}${state ? ` (while ${state})` : ""}`];
  const said = [tokens !== null && `${count(tokens)} tokens`, ttft !== null && `first after ${duration(ttft)}`];
  return ["", said.filter(Boolean).join(", ") || "answered in one piece"];
}

for (const choice of choices) choice.addEventListener("change", () => newest && showEnded(newest));

canShow("ended", (outcome) => {
  choices.find((choice) => choice.value === outcome).click();
  byId("over").scrollIntoView({ block: "start" });
  choices.find((choice) => choice.value === outcome).focus({ preventScroll: true });
});
