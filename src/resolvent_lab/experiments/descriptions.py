"""What was done, in words: the title of each experiment and a paragraph, and a line for each figure."""

DESCRIPTIONS: dict[str, tuple[str, str]] = {
    "regression": (
        "Regression",
        "Twenty points of the sine on [-5, 5], as states (x, 0) in the plane, pass through five theta layers with "
        "h = 1 that share one perceptron of width 10 (GELU, 380 parameters). The loss is the mean squared error of the "
        "second component, plus alpha_div times the divergence, weighted with (t/T)², plus 0.1 times the squared "
        "Jacobian along the trajectories, both estimated with one Gaussian probe; Adam, full batch. Iterations are "
        "counted at the trained networks: L-BFGS up to the authors' tolerance, |r|² ≤ 1e-6, and Newton's method, the "
        "library's default for two unknowns, up to its own, |r| ≤ 1e-6 of the scale. Nothing keeps the spectrum "
        "of this field away from 1 / (theta h), where a layer folds the plane: restarts counts the epochs in which "
        "the solver had to fall back to the flow that passes a fold.",
    ),
    "stiff": (
        "A stiff system",
        "The flow of z' = -20 (z - cos min(t, 2)) is learned from 100 trajectories, five from each cell of time, by "
        "twenty layers with h = 0.1 and weights of their own: F^{-25,-15} around perceptrons of width 4 (ReLU, "
        "normalised). The loss is the mean squared error at 2, 4 or 10 points plus 0.1/20 times the squared "
        "differences of neighbouring layers; Adam, a cell of time at a step. An exact fit needs the slope "
        "(E - 1) / (h (1 + theta (E - 1))), E = exp(-2): -8.65, -15.23 and -63.9 for theta = 0, 0.5 and 1, of which "
        "only the second is within the limits; the table compares the slopes with the nearest one allowed. Continuous "
        "trajectories integrate the learned field by RK4 with steps of 0.0005.",
    ),
    "lotka-volterra": (
        "Predator and prey",
        "Five orbits of the Lotka-Volterra system on [0, 10], 51 points each, are fitted by fifty layers with h = 0.2 "
        "that share one perceptron of width 20 (ReLU, 1780 parameters), without any regularisation; Adam, full batch. "
        "The layers go on to t = 200; continuous trajectories integrate the learned field by RK4 with steps of 0.04. "
        "The late radius is the mean distance from the equilibrium after t = 100 over that of the true orbit. On inner "
        "orbits the extrapolation drifts even where the outer one, which the paper shows, does not.",
    ),
    "mnist": (
        "Digits under noise",
        "Residual networks of one size, with four stages of two theta layers, are trained on a thousand clean images "
        "and shown images with Gaussian noise of standard deviation sigma: the training images, as in the paper, and "
        "held-out ones; the paper's numbers are in parentheses. Columns theta0 to theta1 are the paper's, with "
        "F^{-3,1}; for theta = 0 that field cancels the skip connection, so that explicit-2.5 (F^{-2.5,1}), "
        "explicit-1lip (F^{-1,1}), explicit-free (F = S*G, the usual residual network) and explicit-batchnorm are the "
        "explicit networks to compare with. Numbers are means over draws of the noise, the same for all networks, "
        "and over seeds, with the standard deviation over seeds.",
    ),
}

CAPTIONS: dict[str, str] = {
    "regression-data": "Figure 6, left: the data.",
    "regression-training": "Figure 7: error, divergence and Jacobian in training, as estimated in every tenth epoch.",
    "regression-iterations": "Figure 7: nonlinear iterations against theta and alpha_div.",
    "regression-fields": "Figure 8: fields, trajectories of the data, the line of starting points (blue), its image "
    "(red), and the band of ±0.2 around it after every layer.",
    "regression-spectra": "Figure 8: eigenvalues of the Jacobian along trajectories, from the data (red) and from 61 "
    "points of [-6, 6] (blue, mostly covered), over the stability region |R| ≤ 1 (grey) and the disc |z| < 1/theta "
    "where the layer's map is contractive (red).",
    "regression-spectra-stages": "The same at the stages (1 - theta) y_t + theta y_(t+1), where layers are linearised.",
    "stiff-data": "Figure 6, middle: the field and 100 trajectories, with a dot where each starts.",
    "stiff-trajectories": "Figure 9: the trajectory from zero through the layers (top), and in the learned field as a "
    "differential equation (bottom); dots are at the times of the training points.",
    "stiff-slopes": "Mean slope of each layer's field, of those that [-25, -15] allows; dashed, the one that would fit "
    "the flow best.",
    "lotka-volterra-data": "Figure 6, right: the field and the five orbits with their 51 points.",
    "lotka-volterra-fields": "Figure 10: learned fields with the trajectories of the layers, and eigenvalues of h F' "
    "along them over the stability region.",
    "lotka-volterra-extrapolation": "Figure 11: the outer orbit continued to t = 200, by the layers (top) and in the "
    "learned field as a differential equation (bottom).",
}
