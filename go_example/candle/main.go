//go:build cgo

// Candle links libsemantic in the place of candle-binding's library: it declares the C
// functions itself and asks three models about a text.
//
//	candle DOMAIN_MODEL PII_MODEL EMBEDDING_MODEL [TEXT]
//
// The models are a ModernBERT classifier, a BERT token classifier and an mmBERT encoder.
package main

import (
	"fmt"
	"log"
	"os"
)

func main() {
	log.SetFlags(0)
	text := "I am Sarah Connor, write to sarah@example.org"
	switch len(os.Args) {
	case 4:
	case 5:
		text = os.Args[4]
	default:
		log.Fatal("usage: candle DOMAIN_MODEL PII_MODEL EMBEDDING_MODEL [TEXT]")
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3], text); err != nil {
		log.Fatal(err)
	}
}

func run(domain, pii, encoder, text string) error {
	if !load("init_modernbert_classifier", domain, 0) {
		return fmt.Errorf("%s: %w", domain, errFailed)
	}
	if !load("init_candle_bert_token_classifier", pii, 0) {
		return fmt.Errorf("%s: %w", pii, errFailed)
	}
	if !loadMmBert(encoder) {
		return fmt.Errorf("%s: %w", encoder, errFailed)
	}
	best := classify("classify_modernbert_text_with_probabilities", text)
	if best.index < 0 {
		return fmt.Errorf("classify: %w", errFailed)
	}
	fmt.Printf("domain     class %d of %d, %.2f\n", best.index, len(best.probabilities), best.confidence)
	entities, err := tag("classify_candle_bert_tokens", text, "")
	if err != nil {
		return fmt.Errorf("find personal data: %w", err)
	}
	for _, e := range entities {
		fmt.Printf("pii        %-12s %.2f  bytes %d to %d: %s\n", e.kind, e.confidence, e.start, e.end, e.text)
	}
	vector, err := embed(text, "mmbert", 0, 0)
	if err != nil {
		return fmt.Errorf("embed: %w", err)
	}
	fmt.Printf("embedding  %d dimensions, the first %.4f\n", len(vector.vector), vector.vector[0])
	return nil
}
