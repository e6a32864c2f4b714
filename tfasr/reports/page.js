// Draws interactive charts in the page's colours. If that fails, the still drawing stays.
"use strict";
(() => {
  const source = document.getElementById("charts").textContent;
  const controls = document.getElementById("controls");
  const tip = document.getElementById("tip");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const AXIS_PX = 58;
  const DRAG_PX = 6;

  const colour = (name) =>
    getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // Replaces the ink that Python wrote by the page's, which differs in light and dark mode.
  const readPage = () => {
    const ink = colour("--ink");
    const { ink: written } = JSON.parse(source);
    return JSON.parse(source, (key, value) => (value === written ? ink : value));
  };

  const choice = (name) => {
    const chosen = controls.querySelector(`input[name="${name}"]:checked`);
    return chosen ? chosen.value : null;
  };

  // A reader's choices for each figure: hidden series, and the part of the axes to show.
  const states = new Map();
  const stateOf = (name) => {
    if (!states.has(name)) states.set(name, { hidden: new Set(), x: null, y: {} });
    return states.get(name);
  };

  // Ticks such as 1, 2, 5 and their tenfolds; the first series below with at most 8 of them.
  const logTicks = ([low, high]) => {
    const all = [1, 2, 3, 4, 5, 6, 7, 8, 9];
    let ticks = [];
    for (const steps of [all, [1, 1.5, 2, 3, 5, 7], [1, 2, 5], [1]]) {
      ticks = [];
      for (let n = Math.floor(Math.log10(low)); n <= Math.ceil(Math.log10(high)); n += 1) {
        ticks.push(...steps.map((step) => Number((step * 10 ** n).toPrecision(6))));
      }
      ticks = ticks.filter((tick) => tick >= low && tick <= high);
      if (ticks.length <= 8) break;
    }
    return ticks.length > 1 ? ticks : undefined;
  };

  const setAxis = (channel, panel, number, state) => {
    const { scale, axis } = panel.spec.encoding[channel];
    const wanted = panel.choose[channel] ? choice(`${channel}-scale`) : scale.type;
    const zoomed = channel === "x" ? state.x : state.y[number];
    if (wanted === scale.type && !zoomed) return;
    let [low, high] = zoomed || scale.domain || [null, null];
    if (wanted === "log" && !(low > 0)) low = panel.lowest[channel];
    if (wanted === "log" && !(low > 0)) return;
    if (wanted === "linear" && !zoomed) low = 0;
    scale.type = wanted;
    scale.domain = [low, high];
    if (axis.labelExpr) return;
    delete axis.values;
    axis.tickCount = 6;
    if (wanted === "log") axis.values = logTicks([low, high]);
  };

  const specOf = (page, panels, number, state, width) => {
    const panel = panels[number];
    const spec = panel.spec;
    setAxis("x", panel, number, state);
    setAxis("y", panel, number, state);
    const { y } = spec.encoding;
    if (panels.length > 1 && page.columns === 1) {
      y.axis = { ...y.axis, minExtent: AXIS_PX, maxExtent: AXIS_PX };
    }
    // On a phone, long labels must leave room for the plot.
    y.axis.labelLimit = Math.min(280, 0.4 * width);
    const outside = ([channel, value]) => {
      const domain = spec.encoding[channel].scale.domain;
      return domain && (value < Math.min(...domain) || value > Math.max(...domain));
    };
    spec.layer = panel.layers
      .filter((own) => !state.hidden.has(own.series) && !(own.at && outside(own.at)))
      .map((own) => own.layer);
    if (!spec.layer.length) spec.layer = [{ data: { values: [] }, mark: "point" }];
    return { ...spec, width: "container", autosize: { type: "fit-x", contains: "padding" } };
  };

  // As text, never as HTML: the name of a run may contain anything.
  const tell = (_, event, item, value) => {
    tip.hidden = value == null || value === "";
    if (tip.hidden) return;
    tip.textContent =
      typeof value === "object"
        ? Object.entries(value)
            .map(([key, one]) => (key === "_" ? one : `${key}: ${one}`))
            .filter((line) => line)
            .join("\n")
        : value;
    const box = tip.getBoundingClientRect();
    const left = Math.min(event.clientX + 14, innerWidth - box.width - 4);
    const above = event.clientY + 16 + box.height > innerHeight;
    tip.style.left = `${Math.max(4, left)}px`;
    tip.style.top = `${above ? event.clientY - box.height - 10 : event.clientY + 16}px`;
  };

  // Dragging the mouse over a panel zooms in, a double click zooms out; a finger scrolls the page.
  const zoomable = (place, view, panel, number, state, redraw) => {
    const at = (event) => {
      const box = place.querySelector("svg").getBoundingClientRect();
      const [left, top] = view.origin();
      return [event.clientX - box.x - left, event.clientY - box.y - top];
    };
    const within = (value, most) => Math.max(0, Math.min(most, value));
    place.onpointerdown = (down) => {
      if (down.pointerType !== "mouse" || down.button) return;
      const size = [view.signal("width") || view.width(), view.height()];
      const start = at(down);
      if (start.some((value, n) => value < 0 || value > size[n])) return;
      const brush = document.createElement("div");
      brush.className = "brush";
      let stop = start;
      const move = (event) => {
        stop = at(event).map((value, n) => within(value, size[n]));
        const box = place.getBoundingClientRect();
        const svg = place.querySelector("svg").getBoundingClientRect();
        const [left, top] = view.origin();
        brush.style.left = `${svg.x - box.x + left + Math.min(start[0], stop[0])}px`;
        brush.style.top = `${svg.y - box.y + top + Math.min(start[1], stop[1])}px`;
        brush.style.width = `${Math.abs(stop[0] - start[0])}px`;
        brush.style.height = `${Math.abs(stop[1] - start[1])}px`;
        place.append(brush);
        event.preventDefault();
      };
      const end = () => {
        removeEventListener("pointermove", move);
        removeEventListener("pointerup", end);
        brush.remove();
        const part = (n, channel) => {
          if (Math.abs(stop[n] - start[n]) < DRAG_PX) return null;
          const values = [start[n], stop[n]].map((value) => view.scale(channel).invert(value));
          return [Math.min(...values), Math.max(...values)];
        };
        const [x, y] = [part(0, "x"), part(1, "y")];
        if (x) state.x = x;
        if (y && !panel.spec.encoding.y.axis.labelExpr) state.y[number] = y;
        if (x || y) redraw();
      };
      addEventListener("pointermove", move);
      addEventListener("pointerup", end);
    };
    place.ondblclick = () => {
      state.x = null;
      state.y = {};
      redraw();
    };
  };

  const sample = (entry) => {
    const drawn = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    drawn.setAttribute("viewBox", "0 0 24 12");
    const line = entry.dash;
    drawn.innerHTML = line
      ? `<path d="M0 6H24" stroke="${entry.colour}" stroke-width="3" stroke-dasharray="${line}"/>`
      : `<rect x="5" width="13" height="12" fill="${entry.colour}"/>`;
    return drawn;
  };

  const legend = (figure, page, state, redraw) => {
    const place = figure.querySelector(".legend");
    place.replaceChildren(
      ...page.legend.map((entry) => {
        const button = document.createElement("button");
        button.type = "button";
        button.title = entry.name;
        button.setAttribute("aria-pressed", String(!state.hidden.has(entry.name)));
        const name = document.createElement("span");
        name.textContent = entry.name;
        button.append(sample(entry), name);
        button.onclick = (event) => {
          const others = page.legend.map((one) => one.name).filter((one) => one !== entry.name);
          if (event.shiftKey) state.hidden = new Set(others);
          else if (!state.hidden.delete(entry.name)) state.hidden.add(entry.name);
          redraw();
        };
        return button;
      }),
    );
  };

  const drawn = new Map();

  const draw = async (figure) => {
    const { config, charts } = readPage();
    const page = charts[figure.id];
    const state = stateOf(figure.id);
    const redraw = () => draw(figure);
    const view = choice("x") in page.views ? choice("x") : Object.keys(page.views)[0];
    if (state.view !== view) Object.assign(state, { view, x: null });
    const panels = page.views[view];
    figure.classList.add("live");
    try {
      legend(figure, page, state, redraw);
      const place = figure.querySelector(".plot");
      place.style.setProperty("--columns", page.columns);
      while (place.children.length > panels.length) place.lastChild.remove();
      while (place.children.length < panels.length) {
        place.append(document.createElement("div"));
      }
      for (const old of drawn.get(figure.id) || []) old.finalize();
      const made = [];
      for (const [number, panel] of panels.entries()) {
        const own = place.children[number];
        const embedded = await vegaEmbed(own, specOf(page, panels, number, state, own.clientWidth), {
          mode: "vega-lite", renderer: "svg", ast: true, actions: false, tooltip: tell, config,
        });
        zoomable(own, embedded.view, panel, number, state, redraw);
        made.push(embedded);
      }
      drawn.set(figure.id, made);
      figure.querySelector(".save").hidden = false;
    } catch (error) {
      figure.classList.remove("live");
      console.error(error);
    }
  };

  const drawAll = async () => {
    delete document.documentElement.dataset.drawn;
    for (const figure of document.querySelectorAll("figure[id]")) {
      if (figure.checkVisibility()) await draw(figure);
    }
    document.documentElement.dataset.drawn = choice("x") || "yes";
  };

  // Saves the still drawing, which has its legend, in dark ink on white.
  const save = (figure) => {
    const still = figure.querySelector(".still svg").cloneNode(true);
    still.setAttribute("xmlns", "http://www.w3.org/2000/svg");
    still.style.cssText = "background: #fff; color: #22262b; font-family: sans-serif";
    const file = new Blob([new XMLSerializer().serializeToString(still)], { type: "image/svg+xml" });
    const link = document.createElement("a");
    link.href = URL.createObjectURL(file);
    link.download = `${figure.id}.svg`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };

  // Shows the controls if a chart has choices, and disables axes that some curves lack.
  const offerChoices = () => {
    const charts = Object.values(readPage().charts);
    const curves = charts.filter((one) => Object.keys(one.views).length > 1);
    const chosen = charts.flatMap((one) => one.views[Object.keys(one.views)[0]]);
    const some = (axis) => chosen.filter((panel) => panel.choose[axis]);
    if (!some("x").length && !some("y").length) return;
    for (const input of controls.querySelectorAll('input[name="x"]')) {
      input.disabled = !curves.length || !curves.every((one) => input.value in one.views);
    }
    for (const axis of ["x", "y"]) {
      const log = some(axis).some((panel) => panel.spec.encoding[axis].scale.type === "log");
      const value = log ? "log" : "linear";
      controls.querySelector(`input[name="${axis}-scale"][value="${value}"]`).checked = true;
    }
    controls.hidden = false;
    controls.addEventListener("change", drawAll);
  };

  // A link opens the section that it leads to.
  const openLinked = () => {
    const section = document.getElementById(location.hash.slice(1));
    if (section && section.tagName === "DETAILS") section.open = true;
  };
  addEventListener("hashchange", openLinked);
  openLinked();

  if (typeof vegaEmbed === "undefined") return;
  for (const figure of document.querySelectorAll("figure[id]")) {
    figure.querySelector(".save").onclick = () => save(figure);
  }
  offerChoices();
  // A folded figure has no width, so it is drawn when its section is opened.
  for (const section of document.querySelectorAll("details.section")) {
    section.addEventListener("toggle", () => {
      if (section.open && section.querySelector("figure[id]")) drawAll();
    });
  }
  dark.addEventListener("change", drawAll);
  drawAll();
})();
