// The three tabs: arrows move along them, and a tab opens as it gets the focus.

import { TABS } from "./state.js";

export function initTabs(open) {
  const tabs = TABS.map((name) => document.getElementById(`tab-${name}`));
  tabs.forEach((tab, i) => {
    tab.addEventListener("click", () => open(TABS[i]));
    tab.addEventListener("keydown", (event) => {
      const to = { ArrowRight: i + 1, ArrowLeft: i - 1, Home: 0, End: tabs.length - 1 }[event.key];
      if (to === undefined || event.altKey) return;
      event.preventDefault();
      const next = (to + tabs.length) % tabs.length;
      tabs[next].focus();
      open(TABS[next]);
    });
  });
}

export function showTab(name) {
  for (const each of TABS) {
    const tab = document.getElementById(`tab-${each}`);
    tab.setAttribute("aria-selected", each === name);
    tab.tabIndex = each === name ? 0 : -1;
    document.getElementById(`panel-${each}`).hidden = each !== name;
  }
}
