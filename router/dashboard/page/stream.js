// The router's API: GET admin/live, and orders. EventSource cannot send a header, so the stream is read with fetch().

import { byId, setClass, setText } from "./dom.js";
import { clock } from "./format.js";

const TOKEN = "baton-admin-token";
// ``baton up`` prints a link with the token behind the "#", which browsers send to no server. The page takes it out of the address at once.
const given = new URLSearchParams(location.hash.slice(1)).get("token");
if (given) {
  sessionStorage.setItem(TOKEN, given);
  history.replaceState(null, "", location.pathname + location.search);
}
// Such a link in a tab that shows the page already.
addEventListener("hashchange", () => location.hash.startsWith("#token=") && location.reload());
const FIRST_WAIT_MS = 500;
const MAX_WAIT_MS = 10000;
// A router that lives says something every two seconds. A router that has been silent for so long is taken for gone:
// a network that drops everything closes no connection.
export const limits = { silenceMs: 10000 };

let show = () => {};
//: Of the newest snapshot, seconds since 1970; null: none yet.
let newestS = null;
//: Ends the wait before the next try.
let tryNow = () => {};

export function say(text) {
  if (text) for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close(); // they would hide it
  setText(byId("message"), text);
  byId("message").hidden = !text;
}

function connection(state, text) {
  setClass(byId("connection"), state);
  setText(byId("connection"), text);
}

function authorization() {
  const token = sessionStorage.getItem(TOKEN);
  return token ? { authorization: `Bearer ${token}` } : {};
}

async function errorOf(response) {
  const body = await response.json().catch(() => null);
  return `${response.status}: ${body?.error?.message ?? response.statusText}`;
}

// The button is out of use until the router has answered.
export async function order(button, path, what, method = "POST") {
  button.disabled = true;
  try {
    const response = await fetch(path, { method, headers: authorization() });
    if (response.status === 401) askForToken();
    else say(response.ok ? "" : `${what} failed: ${await errorOf(response)}`);
  } catch (error) {
    say(`${what} failed: ${error.message}`);
  }
  button.disabled = false;
}

// ``onBytes`` is called whenever some came.
async function* snapshots(body, onBytes) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    onBytes();
    text += value;
    const end = text.lastIndexOf("\n\n");
    if (end < 0) continue;
    // Of several that came together only the newest is shown.
    const data = text.slice(0, end).split("\n").filter((line) => line.startsWith("data: "));
    text = text.slice(end + 2);
    if (data.length) yield JSON.parse(data[data.length - 1].slice(6));
  }
}

async function watchOnce() {
  const silent = new AbortController();
  let timer;
  const restart = () => {
    clearTimeout(timer);
    timer = setTimeout(() => silent.abort(new Error("the router has fallen silent")), limits.silenceMs);
  };
  restart();
  try {
    const response = await fetch("admin/live", { headers: authorization(), cache: "no-store", signal: silent.signal });
    if (response.status === 401) {
      askForToken();
      return false;
    }
    if (!response.ok) throw new Error(await errorOf(response));
    say("");
    for await (const snapshot of snapshots(response.body, restart)) showLive(snapshot);
    return true;
  } catch (error) {
    throw silent.signal.aborted ? silent.signal.reason : error; // the browser tells only that it was aborted
  } finally {
    clearTimeout(timer);
  }
}

function showLive(snapshot) {
  newestS = snapshot.time;
  connection("live", "live");
  setText(byId("clock"), clock(snapshot.time));
  byId("lost").hidden = true;
  document.body.classList.remove("stale");
  show(snapshot);
}

// For ever, or until a token is needed. ``onSnapshot`` is called with each one.
export async function watch(onSnapshot) {
  show = onSnapshot;
  for (let waitMs = FIRST_WAIT_MS; ; waitMs = Math.min(waitMs * 2, MAX_WAIT_MS)) {
    const beganMs = Date.now();
    let why = "the router has ended the connection";
    try {
      if (!(await watchOnce())) return;
    } catch (error) {
      why = error.message;
    }
    if (Date.now() - beganMs > MAX_WAIT_MS) waitMs = FIRST_WAIT_MS;
    showLost(why);
    await new Promise((resolve) => {
      tryNow = resolve;
      setTimeout(resolve, waitMs);
    });
  }
}

// What is on the page stays, and says of when it is.
function showLost(why) {
  connection("lost", "reconnecting");
  document.body.classList.add("stale");
  setText(byId("lost-text"), `No connection to the router: ${why}. `
    + (newestS === null ? "Nothing has been heard of it yet. " : `What is below is of ${clock(newestS)}. `)
    + "Connecting again by itself.");
  byId("lost").hidden = false;
}

function askForToken() {
  say(sessionStorage.getItem(TOKEN) ? "The router does not take this token." : "");
  sessionStorage.removeItem(TOKEN);
  connection("lost", "not connected");
  byId("lost").hidden = true;
  document.querySelector("main").hidden = true;
  byId("login").hidden = false;
  byId("token").focus();
}

byId("lost-now").addEventListener("click", () => tryNow());
byId("login").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(TOKEN, byId("token").value);
  byId("token").value = "";
  byId("login").hidden = true;
  watch(show);
});
