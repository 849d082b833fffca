// Asks once before something that cannot be taken back.

import { byId, setText } from "./dom.js";

const dialog = byId("ask");
//: Of the question that is open.
let answer = () => {};

// Resolves to whether the person said yes. Escape, and a click beside the dialog, are a no.
export function asked({ title, text, yes, no }) {
  answer(false);
  setText(byId("ask-title"), title);
  setText(byId("ask-text"), text);
  setText(byId("ask-yes"), yes);
  setText(byId("ask-no"), no);
  if (!dialog.open) dialog.showModal();
  byId("ask-no").focus();
  return new Promise((resolve) => {
    answer = resolve;
  });
}

// The form closes the dialog by itself.
dialog.firstElementChild.addEventListener("submit", (event) => answer(event.submitter === byId("ask-yes")));
// Told a little after it was closed; by then the next question may be open.
dialog.addEventListener("close", () => dialog.open || answer(false));
dialog.addEventListener("click", (event) => {
  if (event.target === dialog) dialog.close();
});
