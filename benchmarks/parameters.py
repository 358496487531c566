"""Do our models have the sizes printed in the paper?   python -m benchmarks.parameters"""

import torch

from superbloom.config.presets import PRESETS
from superbloom.model.network import Network
from tools.record import report


def main() -> None:
    rows, figures = [], {}
    for name, preset in PRESETS.items():
        with torch.device("meta"):
            ours = Network(preset.config).num_parameters()
        off = ours / preset.printed_parameters - 1
        unit = 2**30 if preset.printed.endswith("G") else 2**20
        shown = f"{ours / unit:.{2 if unit == 2**30 else 1}f}{preset.printed[-1]}"
        c = preset.config
        sizes = [str(size) for size in (c.alpha, c.dim, c.heads, c.ffn_dim, c.layers)]
        rows.append([str(preset.table), name, *sizes, preset.printed, shown, f"{ours:,}", f"{off:+.1%}"])
        figures[name] = {"ours": ours, "printed": preset.printed, "off": off}
    header = ["table", "model", "α", "d", "heads", "d_F", "L", "printed", "ours", "parameters", "off"]
    report("Parameters of the paper's twelve models (M = 2^20, G = 2^30)", header, rows, figures)


if __name__ == "__main__":
    main()
