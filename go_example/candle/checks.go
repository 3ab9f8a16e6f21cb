//go:build cgo

package main

/*
#include <stdlib.h>
#include "declarations.h"
*/
import "C"

import (
	"errors"
	"unsafe"
)

// ---- Hallucinations and inference

type span struct {
	text                string
	start, end          int
	confidence          float32
	severity, inference int // with inference only
}

func failure(message *C.char) error {
	if text := C.GoString(message); text != "" {
		return errors.New(text)
	}
	return errFailed
}

func detect(context, question, answer string, threshold float32) (out []span, err error) {
	r := withC(func(s ...*C.char) C.HallucinationDetectionResult {
		return C.detect_hallucinations(s[0], s[1], s[2], C.float(threshold))
	}, context, question, answer)
	defer C.free_hallucination_detection_result(r)
	if r.error {
		return nil, failure(r.error_message)
	}
	n := int(r.num_spans)
	if n == 0 {
		return nil, nil
	}
	for _, s := range (*[1 << 20]C.HallucinationSpan)(unsafe.Pointer(r.spans))[:n:n] {
		out = append(out, span{text: C.GoString(s.text), start: int(s.start), end: int(s.end), confidence: float32(s.confidence)})
	}
	return out, nil
}

func explain(context, question, answer string, threshold float32) (out []span, err error) {
	r := withC(func(s ...*C.char) C.EnhancedHallucinationDetectionResult {
		return C.detect_hallucinations_with_nli(s[0], s[1], s[2], C.float(threshold))
	}, context, question, answer)
	defer C.free_enhanced_hallucination_detection_result(r)
	if r.error {
		return nil, failure(r.error_message)
	}
	n := int(r.num_spans)
	if n == 0 {
		return nil, nil
	}
	for _, s := range (*[1 << 20]C.EnhancedHallucinationSpan)(unsafe.Pointer(r.spans))[:n:n] {
		out = append(out, span{C.GoString(s.text), int(s.start), int(s.end),
			float32(s.hallucination_confidence), int(s.severity), int(s.nli_label)})
	}
	return out, nil
}

func inferenceLoaded() bool { return bool(C.is_nli_model_initialized()) }

// infer returns the label and the probabilities of entailment, neutral and contradiction.
func infer(premise, hypothesis string) (label int, shares [3]float32, err error) {
	r := withC(func(s ...*C.char) C.NLIResult { return C.classify_nli(s[0], s[1]) }, premise, hypothesis)
	defer C.free_nli_result(r)
	if r.error {
		return int(r.label), shares, failure(r.error_message)
	}
	return int(r.label), [3]float32{float32(r.entailment_prob), float32(r.neutral_prob), float32(r.contradiction_prob)}, nil
}

// ---- Batches

type judged struct {
	category  string
	types     []string
	jailbreak bool
	threat    string
}

func loadLoRA(intent, pii, security string) bool {
	return withC(func(s ...*C.char) bool {
		return bool(C.init_lora_unified_classifier(s[0], s[1], s[2], s[3], true))
	}, intent, pii, security, "bert")
}

func classifyBatch(texts []string) (out []judged, err error) {
	first, release := array(texts)
	defer release()
	r := C.classify_batch_with_lora(first, C.int(len(texts)))
	defer C.free_lora_batch_result(r)
	n := int(r.batch_size)
	if n <= 0 {
		return nil, errFailed
	}
	intents := (*[1000]C.LoRAIntentResult)(unsafe.Pointer(r.intent_results))[:n:n]
	data := (*[1000]C.LoRAPIIResult)(unsafe.Pointer(r.pii_results))[:n:n]
	threats := (*[1000]C.LoRASecurityResult)(unsafe.Pointer(r.security_results))[:n:n]
	for i := range n {
		each := judged{category: C.GoString(intents[i].category),
			jailbreak: bool(threats[i].is_jailbreak), threat: C.GoString(threats[i].threat_type)}
		if k := int(data[i].num_pii_types); k > 0 {
			for _, t := range (*[1000]*C.char)(unsafe.Pointer(data[i].pii_types))[:k:k] {
				each.types = append(each.types, C.GoString(t))
			}
		}
		out = append(out, each)
	}
	return out, nil
}

// ---- What configurations say, and frees of nothing

func isMmBert(config string) (multilingual, long bool) {
	withC(func(s ...*C.char) bool {
		multilingual, long = bool(C.is_mmbert_model(s[0])), bool(C.is_mmbert_32k_model(s[0]))
		return true
	}, config)
	return multilingual, long
}

func freeNothing() {
	C.free_cstring(nil)
	C.free_categories(nil, 0)
	C.free_multimodal_embedding(nil, 0)
	C.free_embedding(nil, 0)
	C.free_probabilities(nil, 0)
	C.free_generative_classification_result(nil)
	C.free_guard_result(nil)
}

// ---- Not built yet

// unsupported calls everything that is not built; it returns those that did not fail.
func unsupported(folder string) (succeeded []string) {
	check := func(name string, failed bool) {
		if !failed {
			succeeded = append(succeeded, name)
		}
	}
	first, release := array([]string{"math", "law"})
	defer release()
	withC(func(s ...*C.char) bool {
		path, text, word := s[0], s[1], s[2]
		numbers := [12]C.float{}
		var media C.MultiModalEmbeddingResult
		var category C.GenerativeClassificationResult
		var guard C.GuardResult
		var names **C.char
		var count C.int
		medium := func(status C.int) bool {
			defer C.free_multimodal_embedding(media.data, media.length)
			return status == -1
		}
		generated := func(status C.int) bool {
			defer C.free_generative_classification_result(&category)
			return status == -1
		}
		guarded := func(status C.int) bool {
			defer C.free_guard_result(&guard)
			return status == -1
		}
		check("init_multimodal_embedding_model", !bool(C.init_multimodal_embedding_model(path, true)))
		check("multimodal_encode_text", medium(C.multimodal_encode_text(text, 0, &media)))
		check("multimodal_encode_image", medium(C.multimodal_encode_image(&numbers[0], 2, 2, 0, &media)))
		check("multimodal_encode_audio", medium(C.multimodal_encode_audio(&numbers[0], 2, 6, 0, &media)))
		check("multimodal_encode_image_from_bytes", medium(C.multimodal_encode_image_from_bytes(
			(*C.uchar)(unsafe.Pointer(text)), 1, 0, &media)))
		check("init_qwen3_multi_lora_classifier", C.init_qwen3_multi_lora_classifier(path) == -1)
		check("load_qwen3_lora_adapter", C.load_qwen3_lora_adapter(word, path) == -1)
		check("classify_with_qwen3_adapter", generated(C.classify_with_qwen3_adapter(text, word, &category)))
		check("classify_zero_shot_qwen3", generated(C.classify_zero_shot_qwen3(text, first, 2, &category)))
		check("get_qwen3_loaded_adapters", C.get_qwen3_loaded_adapters(&names, &count) == -1)
		check("is_qwen3_multi_lora_initialized", C.is_qwen3_multi_lora_initialized() == 0)
		check("init_qwen3_guard", C.init_qwen3_guard(path) == -1)
		check("classify_with_qwen3_guard", guarded(C.classify_with_qwen3_guard(text, word, &guard)))
		check("is_qwen3_guard_initialized", C.is_qwen3_guard_initialized() == 0)
		return true
	}, folder, "a text", "input")
	return succeeded
}
