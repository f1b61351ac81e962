// Takes what has changed from the same address, every few seconds, as long as somebody looks.
"use strict";
(() => {
  const every = 5000;
  const button = document.getElementById("refresh"), status = document.getElementById("status");
  if (!document.querySelector("[data-live]")) return;
  let on = true, timer, since = new Date();

  const say = (text, failed) => {
    if (status.textContent !== text) status.textContent = text;
    status.parentElement.classList.toggle("failed", failed);
  };
  // What has the focus is found again by what it leads to.
  const focused = () => {
    const a = document.activeElement;
    return a && a.closest("[data-live]") ? a.getAttribute("href") || a.id || "" : null;
  };
  const refresh = async () => {
    let next;
    try {
      const response = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(10000) });
      if (!response.ok) throw new Error(response.status);
      next = new DOMParser().parseFromString(await response.text(), "text/html");
    } catch {
      say("No answer. This is of " + since.toLocaleTimeString() + ".", true);
      return;
    }
    since = new Date();
    for (const live of document.querySelectorAll("[data-live]")) {
      const now = next.getElementById(live.id), href = focused();
      if (!now || now.innerHTML === live.innerHTML) continue;
      const open = [...live.querySelectorAll("details")].map((d) => d.open);
      live.replaceChildren(...now.childNodes);
      live.querySelectorAll("details").forEach((d, i) => { d.open = open[i] || false; });
      if (href !== null) {
        const again = [...live.querySelectorAll("a, summary")].find((a) => (a.getAttribute("href") || a.id || "") === href);
        if (again) again.focus({ preventScroll: true });
      }
    }
    say("", false);
  };
  const loop = async () => {
    clearTimeout(timer);
    if (on && !document.hidden) await refresh();
    timer = setTimeout(loop, every);
  };
  button.hidden = false;
  button.addEventListener("click", () => {
    on = !on;
    button.setAttribute("aria-pressed", on);
    if (on) loop();
  });
  document.addEventListener("visibilitychange", () => { if (!document.hidden) loop(); });
  timer = setTimeout(loop, every);
})();
