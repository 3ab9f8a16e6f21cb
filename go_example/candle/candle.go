//go:build cgo

package main

/*
#cgo LDFLAGS: -lcandle_semantic_router -ldl -lm
#include <stdlib.h>
#include "declarations.h"
*/
import "C"

import (
	"errors"
	"unsafe"
)

// These tables hold the functions that load a model into a place of their own and those
// that ask it, by their C names.
var (
	// inits take a folder; those of a traditional BERT the number of classes too.
	inits = map[string]func(folder *C.char, classes C.int) C.bool{
		"init_deberta_jailbreak_classifier":    func(p *C.char, _ C.int) C.bool { return C.init_deberta_jailbreak_classifier(p, true) },
		"init_fact_check_classifier":           func(p *C.char, _ C.int) C.bool { return C.init_fact_check_classifier(p, true) },
		"init_feedback_detector":               func(p *C.char, _ C.int) C.bool { return C.init_feedback_detector(p, true) },
		"init_hallucination_model":             func(p *C.char, _ C.int) C.bool { return C.init_hallucination_model(p, true) },
		"init_mmbert_32k_factcheck_classifier": func(p *C.char, _ C.int) C.bool { return C.init_mmbert_32k_factcheck_classifier(p, true) },
		"init_mmbert_32k_feedback_classifier":  func(p *C.char, _ C.int) C.bool { return C.init_mmbert_32k_feedback_classifier(p, true) },
		"init_mmbert_32k_intent_classifier":    func(p *C.char, _ C.int) C.bool { return C.init_mmbert_32k_intent_classifier(p, true) },
		"init_mmbert_32k_jailbreak_classifier": func(p *C.char, _ C.int) C.bool { return C.init_mmbert_32k_jailbreak_classifier(p, true) },
		"init_mmbert_32k_modality_classifier":  func(p *C.char, _ C.int) C.bool { return C.init_mmbert_32k_modality_classifier(p, true) },
		"init_mmbert_32k_pii_classifier":       func(p *C.char, _ C.int) C.bool { return C.init_mmbert_32k_pii_classifier(p, true) },
		"init_mmbert_classifier":               func(p *C.char, _ C.int) C.bool { return C.init_mmbert_classifier(p, true) },
		"init_mmbert_classifier_auto":          func(p *C.char, _ C.int) C.bool { return C.init_mmbert_classifier_auto(p, true) },
		"init_mmbert_token_classifier":         func(p *C.char, _ C.int) C.bool { return C.init_mmbert_token_classifier(p, true) },
		"init_modernbert_classifier":           func(p *C.char, _ C.int) C.bool { return C.init_modernbert_classifier(p, true) },
		"init_modernbert_jailbreak_classifier": func(p *C.char, _ C.int) C.bool { return C.init_modernbert_jailbreak_classifier(p, true) },
		"init_modernbert_pii_classifier":       func(p *C.char, _ C.int) C.bool { return C.init_modernbert_pii_classifier(p, true) },
		"init_modernbert_pii_token_classifier": func(p *C.char, _ C.int) C.bool { return C.init_modernbert_pii_token_classifier(p, true) },
		"init_nli_model":                       func(p *C.char, _ C.int) C.bool { return C.init_nli_model(p, true) },
		"init_similarity_model":                func(p *C.char, _ C.int) C.bool { return C.init_similarity_model(p, true) },
		"init_bert_token_classifier":           func(p *C.char, n C.int) C.bool { return C.init_bert_token_classifier(p, n, true) },
		"init_candle_bert_classifier":          func(p *C.char, n C.int) C.bool { return C.init_candle_bert_classifier(p, n, true) },
		"init_candle_bert_token_classifier":    func(p *C.char, n C.int) C.bool { return C.init_candle_bert_token_classifier(p, n, true) },
		"init_classifier":                      func(p *C.char, n C.int) C.bool { return C.init_classifier(p, n, true) },
		"init_generic_classifier":              func(p *C.char, n C.int) C.bool { return C.init_generic_classifier(p, n, true) },
		"init_jailbreak_classifier":            func(p *C.char, n C.int) C.bool { return C.init_jailbreak_classifier(p, n, true) },
		"init_pii_classifier":                  func(p *C.char, n C.int) C.bool { return C.init_pii_classifier(p, n, true) },
	}

	classifiers = map[string]func(text *C.char) class{
		"classify_bert_text": func(t *C.char) class {
			r := C.classify_bert_text(t)
			return class{int(r.class), float32(r.confidence), nil}
		},
		"classify_candle_bert_text": func(t *C.char) class {
			r := C.classify_candle_bert_text(t)
			return class{int(r.class), float32(r.confidence), nil}
		},
		"classify_deberta_jailbreak_text": func(t *C.char) class {
			r := C.classify_deberta_jailbreak_text(t)
			return class{int(r.class), float32(r.confidence), nil}
		},
		"classify_jailbreak_text": func(t *C.char) class {
			r := C.classify_jailbreak_text(t)
			return class{int(r.class), float32(r.confidence), nil}
		},
		"classify_pii_text": func(t *C.char) class {
			r := C.classify_pii_text(t)
			return class{int(r.class), float32(r.confidence), nil}
		},
		"classify_text": func(t *C.char) class { r := C.classify_text(t); return class{int(r.class), float32(r.confidence), nil} },
		"classify_fact_check_text": func(t *C.char) class {
			r := C.classify_fact_check_text(t)
			return class{int(r.class), float32(r.confidence), nil}
		},
		"classify_feedback_text": func(t *C.char) class {
			r := C.classify_feedback_text(t)
			return class{int(r.class), float32(r.confidence), nil}
		},
		"classify_mmbert_32k_factcheck": func(t *C.char) class {
			r := C.classify_mmbert_32k_factcheck(t)
			return class{int(r.class), float32(r.confidence), nil}
		},
		"classify_mmbert_32k_feedback": func(t *C.char) class {
			r := C.classify_mmbert_32k_feedback(t)
			return class{int(r.class), float32(r.confidence), nil}
		},
		"classify_mmbert_32k_intent": func(t *C.char) class {
			r := C.classify_mmbert_32k_intent(t)
			return class{int(r.class), float32(r.confidence), nil}
		},
		"classify_mmbert_32k_jailbreak": func(t *C.char) class {
			r := C.classify_mmbert_32k_jailbreak(t)
			return class{int(r.class), float32(r.confidence), nil}
		},
		"classify_mmbert_32k_modality": func(t *C.char) class {
			r := C.classify_mmbert_32k_modality(t)
			return class{int(r.class), float32(r.confidence), nil}
		},
		"classify_modernbert_jailbreak_text": func(t *C.char) class {
			r := C.classify_modernbert_jailbreak_text(t)
			return class{int(r.class), float32(r.confidence), nil}
		},
		"classify_modernbert_pii_text": func(t *C.char) class {
			r := C.classify_modernbert_pii_text(t)
			return class{int(r.class), float32(r.confidence), nil}
		},
		"classify_modernbert_text": func(t *C.char) class {
			r := C.classify_modernbert_text(t)
			return class{int(r.class), float32(r.confidence), nil}
		},
		"classify_text_with_probabilities": func(t *C.char) class {
			r := C.classify_text_with_probabilities(t)
			defer C.free_probabilities(r.probabilities, r.num_classes)
			return class{int(r.class), float32(r.confidence), floats(r.probabilities, r.num_classes)}
		},
	}

	// They answer the struct of their own, freed by the function of ModernBERT.
	classifiersWithProbabilities = map[string]func(text *C.char) C.ModernBertClassificationResultWithProbs{
		"classify_jailbreak_text_with_probabilities": func(t *C.char) C.ModernBertClassificationResultWithProbs {
			return C.classify_jailbreak_text_with_probabilities(t)
		},
		"classify_mmbert_32k_jailbreak_with_probabilities": func(t *C.char) C.ModernBertClassificationResultWithProbs {
			return C.classify_mmbert_32k_jailbreak_with_probabilities(t)
		},
		"classify_modernbert_jailbreak_text_with_probabilities": func(t *C.char) C.ModernBertClassificationResultWithProbs {
			return C.classify_modernbert_jailbreak_text_with_probabilities(t)
		},
		"classify_modernbert_text_with_probabilities": func(t *C.char) C.ModernBertClassificationResultWithProbs {
			return C.classify_modernbert_text_with_probabilities(t)
		},
	}

	// The second argument is read by some of them only.
	taggersOfBert = map[string]func(text, labels *C.char) C.BertTokenClassificationResult{
		"classify_bert_pii_tokens":    func(t, l *C.char) C.BertTokenClassificationResult { return C.classify_bert_pii_tokens(t, l) },
		"classify_candle_bert_tokens": func(t, _ *C.char) C.BertTokenClassificationResult { return C.classify_candle_bert_tokens(t) },
		"classify_candle_bert_tokens_with_labels": func(t, l *C.char) C.BertTokenClassificationResult {
			return C.classify_candle_bert_tokens_with_labels(t, l)
		},
	}
	taggersOfModernBert = map[string]func(text, labels *C.char) C.ModernBertTokenClassificationResult{
		"classify_mmbert_32k_pii_tokens": func(t, _ *C.char) C.ModernBertTokenClassificationResult { return C.classify_mmbert_32k_pii_tokens(t) },
		"classify_modernbert_pii_tokens": func(t, l *C.char) C.ModernBertTokenClassificationResult {
			return C.classify_modernbert_pii_tokens(t, l)
		},
	}
)

var errFailed = errors.New("failed; the log of the library says why")

type class struct {
	index         int // -1: the call failed
	confidence    float32
	probabilities []float32 // nil where the function gives none
}

type entity struct {
	kind, text string
	start, end int // bytes
	confidence float32
}

// withC gives f the strings in C, which it must not keep.
func withC[T any](f func(strings ...*C.char) T, strings ...string) T {
	var pointers []*C.char
	for _, s := range strings {
		p := C.CString(s)
		defer C.free(unsafe.Pointer(p))
		pointers = append(pointers, p)
	}
	return f(pointers...)
}

func floats(data *C.float, length C.int) []float32 {
	if data == nil || length <= 0 {
		return nil
	}
	out := make([]float32, length)
	copy(out, unsafe.Slice((*float32)(unsafe.Pointer(data)), int(length)))
	return out
}

// load fills the place of an init function.
func load(init, folder string, classes int) bool {
	return withC(func(s ...*C.char) bool { return bool(inits[init](s[0], C.int(classes))) }, folder)
}

// classify asks a function of either kind.
func classify(function, text string) class {
	return withC(func(s ...*C.char) class {
		if f := classifiers[function]; f != nil {
			return f(s[0])
		}
		r := classifiersWithProbabilities[function](s[0])
		defer C.free_modernbert_probabilities(r.probabilities, r.num_classes)
		return class{int(r.class), float32(r.confidence), floats(r.probabilities, r.num_classes)}
	}, text)
}

// tag asks a function of either kind. As in candle-binding the arrays are looked at as ones
// of a fixed length: two of the functions may answer 1,000 entities at most.
func tag(function, text, labels string) ([]entity, error) {
	var out []entity
	failed := withC(func(s ...*C.char) bool {
		if f := taggersOfBert[function]; f != nil {
			r := f(s[0], s[1])
			defer C.free_bert_token_classification_result(r)
			if r.num_entities > 0 {
				n := int(r.num_entities)
				array := (*[1 << 20]C.BertTokenEntity)(unsafe.Pointer(r.entities))[:]
				if function != "classify_bert_pii_tokens" {
					array = array[:1000:1000]
				}
				for _, e := range array[:n:n] {
					out = append(out, entity{C.GoString(e.entity_type), C.GoString(e.text),
						int(e.start), int(e.end), float32(e.confidence)})
				}
			}
			return r.num_entities < 0
		}
		r := taggersOfModernBert[function](s[0], s[1])
		defer C.free_modernbert_token_result(r)
		if r.num_entities > 0 {
			n := int(r.num_entities)
			for _, e := range (*[1 << 30]C.ModernBertTokenEntity)(unsafe.Pointer(r.entities))[:n:n] {
				out = append(out, entity{C.GoString(e.entity_type), C.GoString(e.text),
					int(e.start), int(e.end), float32(e.confidence)})
			}
		}
		return r.num_entities < 0
	}, text, labels)
	if failed {
		return nil, errFailed
	}
	return out, nil
}

// An embedding is what the embedding functions fill.
type embedding struct {
	vector []float32
	model  int // 0 qwen3, 1 gemma, 2 mmbert
	words  int
}

func filled(status C.int, r *C.EmbeddingResult) (embedding, error) {
	defer C.free_embedding(r.data, r.length)
	if status != 0 || bool(r.error) || r.length == 0 {
		return embedding{}, errFailed
	}
	return embedding{floats(r.data, r.length), int(r.model_type), int(r.sequence_length)}, nil
}

func loadMmBert(folder string) bool {
	return withC(func(s ...*C.char) bool { return bool(C.init_mmbert_embedding_model(s[0], true)) }, folder)
}

// embed asks a model by its name, for so many of its layers and dimensions (0: all).
func embed(text, model string, layer, dimension int) (embedding, error) {
	var r C.EmbeddingResult
	status := withC(func(s ...*C.char) C.int {
		return C.get_embedding_2d_matryoshka(s[0], s[1], C.int(layer), C.int(dimension), &r)
	}, text, model)
	return filled(status, &r)
}
