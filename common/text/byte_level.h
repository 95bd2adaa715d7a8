// GPT-2's way of writing any bytes as printable text: a byte that is a printable, non-space Latin-1 character is itself,
// the others are U+0100, U+0101, … in order. Vocabularies and merges of byte-level BPE are stored in these letters.
#pragma once

#include "common/base/str.h"

// The letter of a byte as a code point (below U+0144), and back; −1 when the code point is the letter of no byte.
uint32_t bt_byte_level_letter(uint8_t byte);
int bt_byte_level_byte(uint32_t code_point);

// Writes the bytes that `text` spells (at most text.len of them) and returns their number. A text with a character that
// is no byte's letter is no spelling (an added token such as <｜User｜>): it is copied as it is.
size_t bt_byte_level_decode(bt_str text, char *out);
// Writes the letters of `bytes`: at most two bytes each.
size_t bt_byte_level_encode(bt_str bytes, char *out);
