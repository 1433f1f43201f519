// Refreshes the parts of a page that change, and shows confirmations in place.  Every page works without it.
"use strict";

const PERIOD = 3000;
const SOON = 700;
let etag = null;
let timer = null;
let failures = 0;
let isLoggedOut = false;

function part(id, page) {
  return page.getElementById(id);
}

function isLive() {
  return document.querySelector("[data-live]") !== null;
}

function replace(old, fresh) {
  if (old.isEqualNode(fresh)) return;
  const focused = old.contains(document.activeElement) ? document.activeElement : null;
  const path = focused && pathTo(old, focused);
  const top = focused && focused.getBoundingClientRect().top;
  const checked = new Set([...old.querySelectorAll("[type=checkbox][name=key]:checked")].map((box) => box.value));
  const open = [...old.querySelectorAll("details")].map((each) => each.open);
  const scrolled = [...old.querySelectorAll(".scroll, .drawn")].map((each) => each.scrollLeft);
  old.replaceChildren(...fresh.childNodes);
  old.querySelectorAll("[type=checkbox][name=key]").forEach((box) => { box.checked = checked.has(box.value); });
  old.querySelectorAll("details").forEach((each, number) => { each.open = open[number] ?? each.open; });
  old.querySelectorAll(".scroll, .drawn").forEach((each, number) => { each.scrollLeft = scrolled[number] ?? 0; });
  if (focused) refocus(old, focused, path, top);
}

function pathTo(root, node) {
  const path = [];
  for (; node !== root; node = node.parentNode) path.unshift([...node.parentNode.children].indexOf(node));
  return path;
}

function refocus(root, focused, path, top) {
  const same = (node) => node.tagName === focused.tagName && node.getAttribute("href") === focused.getAttribute("href")
    && node.value === focused.value;
  const found = [...root.querySelectorAll(focused.tagName)].find(same)
    || path.reduce((node, index) => node && node.children[index], root);
  if (!found) return;
  found.focus({ preventScroll: true });
  window.scrollBy(0, found.getBoundingClientRect().top - top); // lines above may wrap differently now
}

function tellLocalTimes(root) {
  for (const each of root.querySelectorAll("time[datetime]")) {
    const moment = new Date(each.dateTime);
    if (isNaN(moment)) continue;
    const here = moment.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "long" });
    each.title = `${here} here, ${moment.toISOString().slice(0, 19).replace("T", " ")} UTC`;
  }
}

async function refresh() {
  try {
    const headers = etag ? { "If-None-Match": etag } : {};
    const answer = await fetch(location.href, { headers, credentials: "same-origin", redirect: "manual" });
    if (answer.status === 200) {
      etag = answer.headers.get("ETag");
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      tellLocalTimes(page);
      for (const old of document.querySelectorAll("[data-live]")) {
        const fresh = part(old.id, page);
        if (fresh) replace(old, fresh);
      }
    }
    failures = answer.status === 200 || answer.status === 304 ? 0 : failures + 1;
    isLoggedOut = answer.status === 401 || answer.type === "opaqueredirect"; // to the form, in most applications
  } catch {
    failures += 1;
    isLoggedOut = false;
  }
  tell();
  plan();
}

function tell() {
  if (!isLive()) return;
  const problem = isLoggedOut ? "Out of date: log in again." : "Out of date: the dashboard is not responding.";
  const text = failures ? problem : "Refreshes automatically.";
  const place = document.getElementById("updated");
  if (!place || place.textContent === text) return;
  place.textContent = text;
  if (!isLoggedOut) return;
  const link = document.createElement("a");
  link.href = location.search || "?";
  link.textContent = text;
  place.replaceChildren(link);
}

function plan(wait = pause()) {
  clearTimeout(timer);
  if (!document.hidden && isLive()) timer = setTimeout(refresh, wait);
}

function pause() {
  return (document.querySelector("[data-soon]") ? SOON : PERIOD) * Math.min(2 ** failures, 20);
}

async function ask(address) {
  const answer = await fetch(address, { credentials: "same-origin" });
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const content = page.querySelector("form.confirm") || page.querySelector("main .notice:not(#change .notice)");
  if (!content) {
    location.assign(address);
    return;
  }
  const dialog = document.createElement("dialog");
  dialog.setAttribute("aria-labelledby", "confirm-title");
  dialog.append(content);
  if (!content.matches("form")) dialog.append(closer());
  dialog.addEventListener("close", () => dialog.remove());
  dialog.addEventListener("click", (event) => {
    if (!event.target.closest("[data-close]")) return;
    event.preventDefault();
    dialog.close();
  });
  document.body.append(dialog);
  dialog.showModal();
}

function closer() {
  const button = document.createElement("button");
  button.textContent = "Close";
  button.dataset.close = "";
  return button;
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-dialog]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  ask(link.href);
});

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (!form.matches("form[data-dialog]") || !event.submitter) return;
  event.preventDefault();
  const address = new URL(event.submitter.formAction);
  address.search = new URLSearchParams(new FormData(form)).toString();
  ask(address.href);
});

document.addEventListener("change", (event) => {
  if (!event.target.matches("[data-all]")) return;
  const boxes = document.querySelectorAll("[type=checkbox][name=key]");
  boxes.forEach((box) => { box.checked = event.target.checked; });
});

document.addEventListener("visibilitychange", () => plan(0));
tellLocalTimes(document);
tell();
plan();
