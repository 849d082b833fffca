// What a person may order: abort a request, drain and resume a worker. The first two ask once.

import { asked } from "./ask.js";
import { many, short } from "./format.js";
import { canShow } from "./jump.js";
import { order } from "./stream.js";

export async function abort(button, request) {
  const sure = await asked({
    title: `Abort request ${short(request.id)}?`,
    text: "It ends now, in whatever state it is, and gives back what it holds. Its client is told that it was aborted.",
    yes: "Abort it",
    no: "Let it run",
  });
  if (sure) await order(button, `admin/requests/${encodeURIComponent(request.id)}/abort`, `Abort request ${request.id}`);
}

export async function drainOrResume(button, worker, workers) {
  const what = worker.draining ? "resume" : "drain";
  if (what === "resume" || (await asked(drainQuestion(worker, workers)))) {
    const said = `${what === "drain" ? "Drain" : "Resume"} worker ${worker.id}`;
    await order(button, `admin/workers/${encodeURIComponent(worker.id)}/${what}`, said);
  }
}

function drainQuestion(worker, workers) {
  const left = workers.filter((other) => other.id !== worker.id && other.role === worker.role && takesWork(other));
  const has = worker.occupied ? `It finishes the ${many(worker.occupied, "request")} that it has and gets` : "It gets";
  const last = left.length ? "" : ` It is the last one for ${worker.role} that takes requests: new ones will wait, or fail.`;
  return {
    title: `Drain worker ${short(worker.id)}?`,
    text: `${has} nothing new until somebody resumes it.${last}`,
    yes: "Drain it",
    no: "Leave it",
  };
}

export const takesWork = (worker) => worker.healthy && !worker.draining;

canShow("lost", (id) => order({}, `admin/workers/${encodeURIComponent(id)}`, `Forget worker ${id}`, "DELETE"));
