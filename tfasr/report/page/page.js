// Draws the page's plots in its own colours. Where anything fails, the still figure stays.
"use strict";
(() => {
  const source = document.getElementById("plots").textContent;
  const controls = document.getElementById("controls");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const touch = matchMedia("(pointer: coarse)");
  const config = {
    responsive: true,
    displaylogo: false,
    modeBarButtons: [["zoom2d", "pan2d", "resetScale2d", "toImage"]],
    displayModeBar: touch.matches ? false : "hover",
  };

  const colour = (name) =>
    getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // The page's own ink is known only here, and changes with light and dark.
  const readPlots = () => {
    const ink = colour("--ink");
    return JSON.parse(source, (key, value) => (key === "color" && value === "@ink" ? ink : value));
  };

  const choice = (name) => {
    const chosen = controls.querySelector(`input[name="${name}"]:checked`);
    return chosen ? chosen.value : null;
  };

  const plain = (value) => String(Number(value.toPrecision(3)));

  // 1, 2, 5 and their tenfolds as plain figures: the library itself writes 2 where 20 is meant.
  const logTicks = (range) => {
    const [low, high] = [Math.min(...range), Math.max(...range)];
    const all = [1, 2, 3, 4, 5, 6, 7, 8, 9];
    for (const steps of [all, [1, 1.5, 2, 3, 5, 7], [1, 2, 5], [1]]) {
      const ticks = [];
      for (let decade = Math.floor(low); decade <= Math.ceil(high); decade += 1) {
        for (const step of steps) {
          const at = Math.log10(step) + decade;
          if (at >= low - 1e-9 && at <= high + 1e-9) ticks.push(step * 10 ** decade);
        }
      }
      if (ticks.length <= 7) return ticks.length > 1 ? ticks : null;
    }
    return null;
  };

  const axisStyle = () => ({
    gridcolor: colour("--line"),
    zerolinecolor: colour("--line"),
    linecolor: colour("--soft"),
    automargin: true,
  });

  const targetLines = (plot, logY) => {
    const ink = colour("--ink");
    const shapes = plot.targets.map((target) => ({
      type: "line", xref: "x domain", yref: "y", x0: 0, x1: 1, y0: target.y, y1: target.y,
      line: { color: ink, width: 1, dash: "dash" }, opacity: 0.65,
    }));
    const annotations = plot.targets.filter((target) => target.label).map((target) => ({
      xref: "x domain", yref: "y", x: 1, xanchor: "left", yanchor: "middle", showarrow: false,
      y: logY ? Math.log10(target.y) : target.y, text: target.label,
    }));
    return { shapes, annotations };
  };

  const layoutOf = (plot, view) => {
    const ink = colour("--ink");
    const { legend, ...rest } = plot.layout;
    const layout = {
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: ink, size: 12, family: getComputedStyle(document.body).fontFamily },
      hoverlabel: {
        bgcolor: colour("--paper"), bordercolor: colour("--soft"), font: { color: ink },
        align: "left",
      },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("--soft"), activecolor: ink },
      legend: {
        orientation: "h", x: 0, xref: "container", xanchor: "left", y: 0, yref: "container",
        yanchor: "bottom", bgcolor: "rgba(0,0,0,0)", ...legend,
      },
      margin: { l: 12, r: plot.targets && plot.targets.length ? 44 : 12,
        t: touch.matches ? 8 : 30, b: 12 },
      height: plot.height + (innerWidth < 640 ? plot.narrow : 0),
      // A finger that moves over a plot scrolls the page.
      dragmode: touch.matches ? false : "zoom",
      ...rest,
    };
    for (const name of Object.keys(layout)) {
      if (/^[xy]axis/.test(name)) layout[name] = { ...axisStyle(), ...layout[name] };
    }
    layout.xaxis = { ...axisStyle(), ...layout.xaxis, title: { text: plot.x[view] } };
    layout.yaxis = layout.yaxis || axisStyle();
    if (!plot.targets) return layout;
    const logX = choice("x-scale") === "log";
    const logY = plot.choose_y ? choice("y-scale") === "log" : plot.log_y;
    layout.xaxis.type = logX ? "log" : "linear";
    layout.xaxis.rangemode = logX ? "normal" : "tozero";
    layout.yaxis.type = logY ? "log" : "linear";
    layout.yaxis.range = logY ? plot.limits.map(Math.log10) : [0, plot.limits[1]];
    return { ...layout, ...targetLines(plot, logY) };
  };

  const labelLogAxes = (place) => {
    const change = {};
    for (const name of ["xaxis", "yaxis"]) {
      const axis = place._fullLayout[name];
      if (!axis || axis.type !== "log") continue;
      const ticks = logTicks(axis.range);
      const before = JSON.stringify(place.layout[name].tickvals || null);
      if (JSON.stringify(ticks) === before) continue;
      change[`${name}.tickmode`] = ticks ? "array" : "auto";
      change[`${name}.tickvals`] = ticks;
      change[`${name}.ticktext`] = ticks && ticks.map(plain);
    }
    return Object.keys(change).length ? Plotly.relayout(place, change) : null;
  };

  const draw = async (figure, plot) => {
    const place = figure.querySelector(".plot");
    const chosen = choice("x");
    const view = chosen in plot.views ? chosen : Object.keys(plot.views)[0];
    figure.classList.add("live");
    try {
      await Plotly.react(place, plot.views[view], layoutOf(plot, view), config);
      await labelLogAxes(place);
      if (!place.dataset.listening) {
        place.dataset.listening = "yes";
        place.on("plotly_relayout", () => labelLogAxes(place));
      }
    } catch (error) {
      figure.classList.remove("live");
      console.error(error);
    }
  };

  const drawAll = async () => {
    const plots = readPlots();
    for (const figure of document.querySelectorAll("figure[id]")) {
      if (figure.id in plots) await draw(figure, plots[figure.id]);
    }
    document.documentElement.dataset.drawn = choice("x") || "yes";
  };

  // A choice that no plot has is none.
  const offerChoices = () => {
    const curves = Object.values(readPlots()).filter((plot) => plot.targets);
    if (!curves.length) return;
    for (const input of controls.querySelectorAll('input[name="x"]')) {
      input.disabled = !curves.every((plot) => input.value in plot.views);
    }
    const wanted = {
      "x-scale": curves.some((plot) => plot.log_x) ? "log" : "linear",
      "y-scale": "log",
    };
    for (const [name, value] of Object.entries(wanted)) {
      controls.querySelector(`input[name="${name}"][value="${value}"]`).checked = true;
    }
    controls.hidden = false;
    controls.addEventListener("change", drawAll);
  };

  if (typeof Plotly === "undefined") return;
  offerChoices();
  dark.addEventListener("change", drawAll);
  drawAll();
})();
