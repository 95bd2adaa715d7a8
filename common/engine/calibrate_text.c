#include "common/engine/calibrate.h"

// Written for this file. The end, on which divergence is measured, is plain prose and a dialogue.
const char bt_calibration_text[] =
    "The harbour lay quiet in the early morning. Fishermen mended their nets along the wall, and now and then a gull "
    "dropped down to see whether anything had been forgotten between the stones. In 1894 the first steam crane was put "
    "up here; it lifted 2,500 kilograms and was admired by people from three counties.\n\n"
    "To compute the mean of a list, add all numbers and divide by how many there are:\n\n"
    "def mean(values):\n    if not values:\n        raise ValueError(\"empty list\")\n    return sum(values) / "
    "len(values)\n\n"
    "print(mean([3, 5, 10]))  # 6.0\n\n"
    "Question: Why does ice float on water? Answer: Because ice is less dense. The molecules in a crystal keep more "
    "distance from each other than in the liquid, so a given volume weighs less.\n\n"
    "Der Zug nach Leipzig hat zehn Minuten Versp\xc3\xa4tung. Le march\xc3\xa9 ouvre \xc3\xa0 huit heures. "
    "\xe4\xbb\x8a\xe5\xa4\xa9\xe5\xa4\xa9\xe6\xb0\x94\xe5\xbe\x88\xe5\xa5\xbd\xe3\x80\x82\n\n"
    "\"Have you read the letter?\" she asked. \"Twice,\" he said, \"and I still do not understand what he wants from "
    "us. "
    "He writes about the garden, about his sister's health, about the price of coal, and then, in the very last line, "
    "he asks whether the old key still opens the green door.\" She put down her cup and looked out of the window for a "
    "while. The rain had stopped, and somebody was walking slowly up the path with a lamp in his hand.\n";
